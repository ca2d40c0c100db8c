//! What a person sees: lines that stay, and below them a table that is drawn anew each second.
//! Where the output is no terminal, the table is printed every five seconds instead.

use std::cell::Cell;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::table::View;

/// Seconds between tables that stay.
const PLAIN_EVERY: u64 = 5;

/// The output.
pub(super) struct Screen {
    terminal: bool,
    drawn_lines: Cell<usize>,
    closed: Cell<bool>,
}

/// Stops the drawing when dropped.
pub(super) struct Drawing(JoinHandle<()>);

impl Screen {
    /// A screen on standard output.
    pub(super) fn new(terminal: bool) -> Self {
        Self {
            terminal,
            drawn_lines: Cell::new(0),
            closed: Cell::new(false),
        }
    }

    /// Prints a line that stays.
    pub(super) fn say(&self, line: &str) {
        self.print(&format!("{}{line}\n", self.erase()));
    }

    /// Draws no table any more.
    pub(super) fn close(&self) {
        self.closed.set(true);
    }

    fn draw(&self, table: &str) {
        if self.closed.get() {
            return;
        }
        let erase = self.erase();
        self.print(&format!("{erase}{table}"));
        if self.terminal {
            self.drawn_lines.set(table.lines().count());
        }
    }

    /// Takes the drawn table off again.
    fn erase(&self) -> String {
        match self.drawn_lines.replace(0) {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\x1b[J"),
        }
    }

    fn print(&self, text: &str) {
        // Nobody reads any more: the world goes on, its exit code still says how it went.
        let mut output = std::io::stdout().lock();
        let _ = output
            .write_all(text.as_bytes())
            .and_then(|()| output.flush());
    }
}

impl Drop for Drawing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Draws the table until the guard is dropped.
pub(super) fn draw_each_second(screen: &Rc<Screen>, view: &Rc<View>) -> Drawing {
    let (screen, view) = (Rc::clone(screen), Rc::clone(view));
    Drawing(tokio::task::spawn_local(async move {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for number in 0u64.. {
            second.tick().await;
            let table = view.table().await;
            if screen.terminal || number % PLAIN_EVERY == PLAIN_EVERY - 1 {
                screen.draw(&table);
            }
        }
    }))
}
