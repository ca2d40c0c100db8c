//! Which keys and values of a body routing keeps, and where they stand.

use pointsman_shm::policy::{Endpoints, Features};

use super::opening::Region;
use super::{JsonError, JsonScan, MAX_KEY_BYTES, MAX_MODEL_BYTES, PROMPT_OPENING_BYTES, State};

/// A top-level key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Top {
    Model,
    Stream,
    PromptCacheKey,
    Conversation,
    CacheSalt,
    User,
    Tools,
    Messages,
    Input,
    Prompt,
    System,
    Instructions,
    Other,
}

/// What a string is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Captured {
    Nothing,
    Key,
    /// The value of the present top-level key.
    Top,
    /// `conversation.id`.
    ConversationId,
    /// `role` of a turn.
    Role,
    /// `type` of a turn or of a part of one.
    Type,
}

/// Longest key or short value that is compared with anything, and one more to tell longer ones.
const MAX_NAME_BYTES: usize = 24;

/// Bit of `conversation.id` among the keys seen.
const CONVERSATION_ID_BIT: u16 = 1 << 15;

impl Top {
    fn of(key: &[u8]) -> Self {
        match key {
            b"model" => Self::Model,
            b"stream" => Self::Stream,
            b"prompt_cache_key" => Self::PromptCacheKey,
            b"conversation" => Self::Conversation,
            b"cache_salt" => Self::CacheSalt,
            b"user" => Self::User,
            b"tools" => Self::Tools,
            b"messages" => Self::Messages,
            b"input" => Self::Input,
            b"prompt" => Self::Prompt,
            b"system" => Self::System,
            b"instructions" => Self::Instructions,
            _ => Self::Other,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Stream => "stream",
            Self::PromptCacheKey => "prompt_cache_key",
            Self::Conversation => "conversation",
            Self::CacheSalt => "cache_salt",
            Self::User => "user",
            Self::Tools => "tools",
            Self::Messages => "messages",
            Self::Input => "input",
            Self::Prompt => "prompt",
            Self::System => "system",
            Self::Instructions => "instructions",
            Self::Other => "",
        }
    }
}

impl JsonScan {
    pub(super) fn key_starts(&mut self) {
        (self.in_key, self.state, self.inner) = (true, State::String, Captured::Nothing);
        let wanted = self.depth == 1
            || (self.depth == 2 && self.top == Top::Conversation)
            || (self.in_turns && self.holds_parts());
        self.capture = if wanted {
            Captured::Key
        } else {
            Captured::Nothing
        };
        if wanted {
            self.token.restart(MAX_NAME_BYTES);
        }
    }

    pub(super) fn string_ends(&mut self, input: &[u8], at: usize) -> Result<(), JsonError> {
        let capture = std::mem::replace(&mut self.capture, Captured::Nothing);
        if self.in_key {
            self.state = State::Colon;
            return if capture == Captured::Key {
                self.key_ends()
            } else {
                Ok(())
            };
        }
        match capture {
            Captured::Nothing | Captured::Key => {}
            Captured::Top => self.keep_top()?,
            Captured::ConversationId => self.facts.conversation = Some(self.text("conversation")?),
            Captured::Role => self.user_turn = self.token.bytes() == b"user",
            Captured::Type => {
                let image = matches!(self.token.bytes(), b"image_url" | b"input_image" | b"image");
                if image {
                    self.facts.features = self.facts.features.with(Features::IMAGES);
                }
            }
        }
        self.opening
            .value_ends(input, at + 1, self.depth, self.user_turn);
        self.value_ends();
        Ok(())
    }

    pub(super) fn literal_ends(&mut self, word: &[u8]) {
        if self.depth == 1 && self.top == Top::Stream && word == b"true" {
            self.facts.features = self.facts.features.with(Features::STREAM);
        }
        self.value_ends();
    }

    /// Looks at a value's first byte: whether it is kept, hashed, or says something by itself.
    pub(super) fn notice_value(&mut self, byte: u8, at: usize) -> Result<(), JsonError> {
        let string = byte == b'"';
        self.capture = match self.depth {
            1 => return self.notice_top(byte, at),
            2 if self.top == Top::Tools && self.is_array(2) => {
                self.facts.features = self.facts.features.with(Features::TOOLS);
                Captured::Nothing
            }
            2 if self.in_turns && byte == b'{' && self.opening.turns_hash.is_none() => {
                self.user_turn = false;
                self.opening.value_starts(Region::Turn, 2, at, u64::MAX);
                Captured::Nothing
            }
            _ if string => self.inner,
            _ => Captured::Nothing,
        };
        if self.capture != Captured::Nothing {
            let id = self.capture == Captured::ConversationId;
            self.token
                .restart(if id { MAX_KEY_BYTES } else { MAX_NAME_BYTES });
        }
        Ok(())
    }

    fn notice_top(&mut self, byte: u8, at: usize) -> Result<(), JsonError> {
        let string = byte == b'"';
        let most = match self.top {
            Top::Model if !string => return Err(JsonError::Model),
            Top::Model => MAX_MODEL_BYTES,
            Top::PromptCacheKey | Top::Conversation | Top::CacheSalt | Top::User if string => {
                MAX_KEY_BYTES
            }
            _ => 0,
        };
        self.capture = if most > 0 {
            Captured::Top
        } else {
            Captured::Nothing
        };
        self.token.restart(most);
        let serves = |endpoints: Endpoints| {
            endpoints.contains(self.endpoint) || self.endpoint == Endpoints::OTHER
        };
        let container = matches!(byte, b'[' | b'{');
        match self.top {
            Top::Messages | Top::Input => {
                let own = if self.top == Top::Messages {
                    serves(Endpoints(Endpoints::CHAT.0 | Endpoints::MESSAGES.0))
                } else {
                    serves(Endpoints::RESPONSES)
                };
                self.in_turns = own && byte == b'[';
                if own && string {
                    self.opening.value_starts(Region::Prompt, 1, at, u64::MAX);
                }
            }
            Top::System | Top::Instructions if string || container => {
                let own = if self.top == Top::System {
                    serves(Endpoints::MESSAGES)
                } else {
                    serves(Endpoints::RESPONSES)
                };
                if own {
                    self.opening.value_starts(Region::System, 1, at, u64::MAX);
                }
            }
            Top::Prompt if (string || container) && serves(Endpoints::COMPLETIONS) => {
                self.opening
                    .value_starts(Region::Prompt, 1, at, PROMPT_OPENING_BYTES);
            }
            _ => {}
        }
        Ok(())
    }

    fn key_ends(&mut self) -> Result<(), JsonError> {
        match self.depth {
            1 => {
                self.top = Top::of(self.token.bytes());
                let bit = 1 << self.top as u16;
                if self.top != Top::Other && self.seen & bit != 0 {
                    return Err(JsonError::DuplicateKey {
                        key: self.top.name(),
                    });
                }
                self.seen |= bit;
            }
            2 if self.top == Top::Conversation => {
                if self.token.bytes() == b"id" {
                    if self.seen & CONVERSATION_ID_BIT != 0 {
                        return Err(JsonError::DuplicateKey {
                            key: "conversation.id",
                        });
                    }
                    self.seen |= CONVERSATION_ID_BIT;
                    self.inner = Captured::ConversationId;
                }
            }
            depth => {
                self.inner = match self.token.bytes() {
                    b"role" if depth == 3 => Captured::Role,
                    b"type" => Captured::Type,
                    _ => Captured::Nothing,
                };
            }
        }
        Ok(())
    }

    /// Whether the present object is a turn (3), a part of its content (5), or a part of a part
    /// (7: an image in a tool's result). Deeper ones, and objects in objects (a tool call's
    /// arguments), are data.
    fn holds_parts(&self) -> bool {
        matches!(self.depth, 3 | 5 | 7) && self.is_array(self.depth - 1)
    }

    fn keep_top(&mut self) -> Result<(), JsonError> {
        if self.top == Top::Model {
            if self.token.overflowed() {
                return Err(JsonError::ModelTooLong);
            }
            if self.token.bytes().is_empty() {
                return Err(JsonError::Model);
            }
        }
        let text = Some(self.text(self.top.name())?);
        match self.top {
            Top::Model => self.facts.model = text,
            Top::PromptCacheKey => self.facts.prompt_cache_key = text,
            Top::Conversation => self.facts.conversation = text,
            Top::CacheSalt => self.facts.cache_salt = text,
            Top::User => self.facts.user = text,
            _ => debug_assert!(false, "no other top-level string is kept"),
        }
        Ok(())
    }

    fn text(&mut self, key: &'static str) -> Result<String, JsonError> {
        self.token.text().ok_or(JsonError::Unicode { key })
    }
}
