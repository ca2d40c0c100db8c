//! A second attempt beside the first, for a streamed request whose first token is late: see
//! [`crate::decide::hedge`].
//!
//! Both run in the request's own task. Neither has the client: each waits through one of its own
//! that nobody sends to ([`Client::aside`]), so that either can be called off alone, and the client
//! itself is watched over both. Called off, an attempt ends as it does when its client leaves: the
//! engine hears of it at once. What the winner has read of its answer goes on as if it had been
//! alone.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pointsman_shm::policy::Features;
use pointsman_shm::signals::Outcome;

use super::attempt::{Attempt, NotOpened, Opened};
use super::client::{Client, Interrupt};
use super::expected::expect;
use super::forward::{Course, outcome_of_interrupt};
use super::outgoing::Sending;
use super::request::Story;
use super::shard::Shard;
use super::target::{self, Choice};
use crate::clock::monotonic_ns;
use crate::decide::blame::{Blame, blame, outcome_of, outcome_of_status};
use crate::metrics::Hedge;

/// What opening an attempt came to.
type Opening = Result<Opened, NotOpened>;

/// Whose turn something was.
enum Lap {
    First(Opening),
    Second(Opening),
}

/// What an attempt of two waits through.
struct Side {
    client: Client,
    recalled: Rc<Cell<bool>>,
}

/// What the race came to.
enum Won {
    First(Opening),
    /// And how the first ended.
    Second(Opening, Outcome),
}

impl Side {
    fn new(shard: &Shard, total_due_ns: u64) -> Self {
        let recalled = Rc::new(Cell::new(false));
        Self {
            client: Client::aside(&shard.alarms, total_due_ns, Rc::clone(&recalled)),
            recalled,
        }
    }
}

impl Story<'_> {
    /// How long the first attempt has before there may be a second; none where there is to be none.
    /// A whole answer has no first token that could be late, and a body that flows is there but
    /// once.
    pub(super) fn hedge_delay_ns(&self, course: &Course<'_>) -> Option<u64> {
        let rules = self.shard.config.hedge?;
        let may_hedge = self.features.contains(Features::STREAM) && course.body.flow().is_none();
        match may_hedge {
            true => rules.delay_ns(course.choice.predicted_ttft_ms),
            false => None,
        }
    }

    /// Opens a streamed request's first attempt up to its first byte, and a second one beside it
    /// when it is late. Gives back the attempt that the result is of.
    pub(super) async fn hedged(
        &mut self,
        course: &mut Course<'_>,
        first: Attempt,
        delay_ns: u64,
    ) -> (Attempt, Opening) {
        let (shard, id) = (self.shard, self.id.clone());
        let secrets = Arc::clone(shard.secrets.borrow().current());
        let why = shard.config.why.as_ref();
        let sending = Sending {
            head: self.head,
            bytes: self.bytes,
            id: &id,
            bearer: secrets.bearer(first.engine.credential),
            withheld: why.map(|why| &*why.header),
            body: course.body,
            features: self.features,
        };
        // Both have deadlines of their own, and the whole request's among them.
        self.client.alarm.clear();
        let total_due_ns = self.client.total_due_ns;
        let mut side = Side::new(self.shard, total_due_ns);
        let mut second = None;
        let won = {
            let mut opening = Box::pin(first.open_to_first_byte(&mut side.client, &sending));
            match alone(self.client, opening.as_mut(), delay_ns).await {
                Some(Ok(result)) => Won::First(result),
                Some(Err(interrupt)) => {
                    call_off(&side.recalled, opening.as_mut()).await;
                    Won::First(Err(NotOpened::Interrupted(interrupt)))
                }
                None => match self.second(course) {
                    Some((choice, attempt)) => {
                        let sending = Sending {
                            bearer: secrets.bearer(choice.engine.credential),
                            ..sending
                        };
                        let other = second.insert((choice, attempt));
                        let first = (&first, &*side.recalled);
                        self.race(first, opening.as_mut(), &other.1, &sending).await
                    }
                    None => Won::First(to_end(self.client, opening.as_mut(), &side.recalled).await),
                },
            }
        };
        match (won, second) {
            (Won::Second(result, outcome), Some((choice, attempt))) => {
                first.end(outcome);
                self.telling.note(|why| {
                    why.ended(outcome);
                    why.chosen(&choice.engine.id, choice.via, choice.table);
                });
                course.choice = choice;
                (attempt, result)
            }
            (Won::First(result) | Won::Second(result, _), _) => (first, result),
        }
    }

    /// The second attempt, if there may be one: the body can be sent beside the first, an engine is
    /// left, and the budget has a token, which is taken now.
    fn second(&self, course: &mut Course<'_>) -> Option<(Choice, Attempt)> {
        let may_try = course.has_room
            && course.tried.len() < self.shard.config.retry.attempts
            && course.body.can_be_sent_beside();
        if !may_try {
            return None;
        }
        if target::refused(self.shard, course.target, &course.tried).is_some() {
            return None;
        }
        if !self.has_token(course.target, monotonic_ns()) {
            self.shard.metrics.hedge(Hedge::NoToken);
            return None;
        }
        let choice = self.choose(course.target, &course.tried).ok()?;
        course.has_room = course.tried.push(choice.engine.slot);
        let attempt = Attempt::start(self.shard, &choice.engine, choice.pair);
        let asked = (course.body, self.features);
        let wait = expect(self.shard, &choice.engine, course.target, asked);
        attempt.wait.set(wait);
        Some((choice, attempt))
    }

    /// Waits for the first of two attempts that brings an answer, and calls the other off.
    async fn race(
        &mut self,
        (first, recalled): (&Attempt, &Cell<bool>),
        mut opening: Pin<&mut impl Future<Output = Opening>>,
        second: &Attempt,
        sending: &Sending<'_>,
    ) -> Won {
        let metrics = &self.shard.metrics;
        let mut side = Side::new(self.shard, self.client.total_due_ns);
        let mut other = Box::pin(second.open_to_first_byte(&mut side.client, sending));
        let (won, outcome) = match both(self.client, opening.as_mut(), other.as_mut()).await {
            Err(interrupt) => {
                call_off(recalled, opening.as_mut()).await;
                call_off(&side.recalled, other.as_mut()).await;
                metrics.hedge(Hedge::Lost);
                let outcome = outcome_of_interrupt(interrupt);
                (Won::First(Err(NotOpened::Interrupted(interrupt))), outcome)
            }
            Ok(Lap::First(result)) if is_final(&result) => {
                call_off(&side.recalled, other.as_mut()).await;
                metrics.hedge(Hedge::Lost);
                (Won::First(result), Outcome::Ours)
            }
            // Its failure is as good as noted: the second is its retry, and paid for.
            Ok(Lap::First(failed)) => {
                let outcome = self.give_up(first, failed);
                let result = to_end(self.client, other.as_mut(), &side.recalled).await;
                metrics.hedge(match is_success(&result) {
                    true => Hedge::Won,
                    false => Hedge::Failed,
                });
                return Won::Second(result, outcome);
            }
            Ok(Lap::Second(result)) if is_success(&result) => {
                first.is_outrun();
                call_off(recalled, opening.as_mut()).await;
                metrics.hedge(Hedge::Won);
                return Won::Second(result, Outcome::Ours);
            }
            Ok(Lap::Second(failed)) => {
                let outcome = self.give_up(second, failed);
                metrics.hedge(Hedge::Failed);
                let result = to_end(self.client, opening.as_mut(), recalled).await;
                (Won::First(result), outcome)
            }
        };
        second.end(outcome);
        won
    }

    /// Takes leave of an attempt that failed while another goes on, and says how it ended.
    fn give_up(&self, attempt: &Attempt, failed: Opening) -> Outcome {
        let outcome = match failed {
            Ok(opened) => {
                self.keep_quiet(attempt, &opened.answer);
                let outcome = outcome_of_status(opened.answer.head.status);
                opened.source.abandon();
                outcome
            }
            Err(NotOpened::Failed(end, _)) => outcome_of(end),
            Err(_) => Outcome::Ours,
        };
        attempt.end(outcome);
        outcome
    }
}

/// Waits for an attempt alone, at most `delay_ns`; none when that is over.
async fn alone(
    client: &mut Client,
    mut opening: Pin<&mut impl Future<Output = Opening>>,
    delay_ns: u64,
) -> Option<Result<Opening, Interrupt>> {
    let mut late = pin!(monoio::time::sleep(Duration::from_nanos(delay_ns)));
    let lap = poll_fn(|context: &mut Context<'_>| {
        if let Poll::Ready(result) = opening.as_mut().poll(context) {
            return Poll::Ready(Some(result));
        }
        late.as_mut().poll(context).map(|()| None)
    });
    client.during(pin!(lap)).await.transpose()
}

/// Waits for either of two attempts.
async fn both(
    client: &mut Client,
    mut first: Pin<&mut impl Future<Output = Opening>>,
    mut second: Pin<&mut impl Future<Output = Opening>>,
) -> Result<Lap, Interrupt> {
    let lap = poll_fn(|context: &mut Context<'_>| {
        if let Poll::Ready(result) = first.as_mut().poll(context) {
            return Poll::Ready(Lap::First(result));
        }
        second.as_mut().poll(context).map(Lap::Second)
    });
    client.during(pin!(lap)).await
}

/// Waits for the one attempt that is left.
async fn to_end(
    client: &mut Client,
    mut opening: Pin<&mut impl Future<Output = Opening>>,
    recalled: &Cell<bool>,
) -> Opening {
    match client.during(opening.as_mut()).await {
        Ok(result) => result,
        Err(interrupt) => {
            call_off(recalled, opening).await;
            Err(NotOpened::Interrupted(interrupt))
        }
    }
}

/// Calls an attempt off, which ends it within this turn, and lets go of what it has.
async fn call_off(recalled: &Cell<bool>, opening: Pin<&mut impl Future<Output = Opening>>) {
    recalled.set(true);
    if let Ok(opened) = opening.await {
        opened.source.abandon();
    }
}

/// Whether the first attempt's result is the request's, whatever the second brings: an answer that
/// is no failure of the engine's, or an end that is none.
fn is_final(result: &Opening) -> bool {
    match result {
        Ok(opened) => matches!(
            blame(outcome_of_status(opened.answer.head.status)),
            None | Some(Blame::Client)
        ),
        Err(NotOpened::Failed(..) | NotOpened::Full) => false,
        Err(NotOpened::LetGo | NotOpened::Unfit(_) | NotOpened::Interrupted(_)) => true,
    }
}

/// Whether the second attempt brings an answer worth taking instead of the first's.
fn is_success(result: &Opening) -> bool {
    let status = result.as_ref().map(|opened| opened.answer.head.status);
    status.is_ok_and(|status| (200..300).contains(&status))
}
