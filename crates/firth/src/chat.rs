//! Conversations: messages, and the memory of what was computed for them.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::error::Error;
use crate::model::{Answer, ChatOptions, GenerateOptions, Message, Model};

/// A conversation with a model. What the model has computed stays in its cache, so a turn costs what is new in it.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    messages: Vec<Message>,
    options: ChatOptions,
}

/// What a template opens where it has the model think first, and what closes it.
const THINK: [&str; 2] = ["<think>", "</think>"];

impl Conversation {
    /// No turns yet.
    pub fn new(system: Option<String>, options: ChatOptions) -> Conversation {
        let system = system.map(|content| Message { role: "system".into(), content });
        Conversation { messages: system.into_iter().collect(), options }
    }

    /// What was said.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Forgets all turns; a system message stays.
    pub fn clear(&mut self) {
        self.messages.retain(|m| m.role == "system");
    }

    /// A turn: the user's text and the model's answer to it, which `on` gets as it comes and may end. Where the
    /// template has opened the model's thoughts, `on` and the conversation get the opening, too.
    ///
    /// # Errors
    /// The template or the engine refuses; the conversation is as before.
    pub fn say(
        &mut self,
        model: &mut Model,
        text: &str,
        options: &GenerateOptions,
        on: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, Error> {
        self.messages.push(Message::user(text));
        let answer = self.answer(model, options, on);
        match &answer {
            Ok((answer, opening)) => {
                let content = thoughts_closed(opening, &answer.text);
                self.messages.push(Message { role: "assistant".into(), content });
            }
            Err(_) => drop(self.messages.pop()),
        }
        answer.map(|(answer, _)| answer)
    }

    fn answer(
        &self,
        model: &mut Model,
        options: &GenerateOptions,
        on: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<(Answer, String), Error> {
        let prompt = model.chat_prompt(&self.messages, &self.options)?;
        let tail: Vec<u8> = {
            let last = &prompt.ids[prompt.ids.len().saturating_sub(16)..];
            last.iter().flat_map(|id| model.vocab().piece(*id, true)).copied().collect()
        };
        let opening = opened(&String::from_utf8_lossy(&tail)).unwrap_or_default();
        if !opening.is_empty() {
            // What it says is asked again with the first step.
            let _ = on(&opening);
        }
        Ok((model.generate(prompt, options, on)?, opening))
    }

    /// Writes the conversation to `path` as JSON, and beside it, as `path` with `.state` at the end, what the next
    /// turn will go on from.
    ///
    /// # Errors
    /// A file cannot be written, or the model cannot compute what is missing in its cache.
    pub fn save(&self, model: &mut Model, path: &Path) -> Result<(), Error> {
        let list: Vec<Value> =
            self.messages.iter().map(|m| json!({"role": m.role, "content": m.content})).collect();
        let text = serde_json::to_string_pretty(&json!({ "messages": list })).expect("plain JSON");
        write(path, text.as_bytes()).map_err(|source| Error::ReadWrite { path: path.into(), source })?;
        let ids = self.common_start(model)?;
        model.save_state(0, &ids, &state_path(path))
    }

    /// Reads a conversation that was saved. What was computed for it is taken over where it is of this model and its
    /// settings; else the second value says why not, and the next turn computes it again, with the same bits.
    ///
    /// # Errors
    /// `path` cannot be read or holds no conversation.
    pub fn load(
        model: &mut Model,
        path: &Path,
        options: ChatOptions,
    ) -> Result<(Conversation, Result<(), Error>), Error> {
        let text = std::fs::read(path).map_err(|source| Error::ReadWrite { path: path.into(), source })?;
        let wrong = || Error::Argument(format!("{} holds no conversation", path.display()));
        let value: Value = serde_json::from_slice(&text).map_err(|_| wrong())?;
        let part = |m: &Value, key: &str| m[key].as_str().map(str::to_owned);
        let message = |m: &Value| Some(Message { role: part(m, "role")?, content: part(m, "content")? });
        let messages = value["messages"].as_array().ok_or_else(wrong)?;
        let messages: Option<Vec<Message>> = messages.iter().map(message).collect();
        let conversation = Conversation { messages: messages.ok_or_else(wrong)?, options };
        let state = model.load_state(0, &state_path(path)).map(drop);
        Ok((conversation, state))
    }

    /// What the prompt of the next turn begins with, whatever is said in it.
    fn common_start(&self, model: &Model) -> Result<Vec<u32>, Error> {
        let prompt = |text: &str| {
            let next = [&self.messages[..], &[Message::user(text)]].concat();
            model.chat_prompt(&next, &self.options)
        };
        // Two texts of which no token spans more than the first letter.
        let (mut a, b) = (prompt("A")?.ids, prompt("7")?.ids);
        a.truncate(a.iter().zip(&b).take_while(|(a, b)| a == b).count());
        Ok(a)
    }
}

/// The end of a prompt, from where it opens thoughts and does not close them.
fn opened(tail: &str) -> Option<String> {
    let at = tail.rfind(THINK[0])?;
    (!tail[at..].contains(THINK[1])).then(|| tail[at..].to_owned())
}

/// An answer as the template wants to see it in later turns: with its thoughts between their marks, also where it was
/// ended among them.
fn thoughts_closed(opening: &str, text: &str) -> String {
    let end = match opening.is_empty() || text.contains(THINK[1]) {
        true => String::new(),
        false => format!("\n{}\n\n", THINK[1]),
    };
    format!("{opening}{text}{end}")
}

fn state_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".state");
    name.into()
}

/// Writes a file under a temporary name and renames it.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let written = std::fs::File::create(&temporary)
        .and_then(|mut f| f.write_all(bytes).and_then(|()| f.sync_all()))
        .and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts() {
        for (tail, expected) in [
            ("<|im_start|>assistant\n<think>\n", Some("<think>\n")),
            ("<|im_start|>assistant\n<think>\n\n</think>\n\n", None),
            ("</think>\n\nSo.<|im_end|>\n<|im_start|>assistant\n", None),
            ("<think>a</think><think>", Some("<think>")),
        ] {
            assert_eq!(opened(tail).as_deref(), expected, "{tail}");
        }
        assert_eq!(thoughts_closed("", "So."), "So.");
        assert_eq!(thoughts_closed("<think>\n", "Hm.\n</think>\n\nSo."), "<think>\nHm.\n</think>\n\nSo.");
        assert_eq!(thoughts_closed("<think>\n", "Hm"), "<think>\nHm\n</think>\n\n");
    }
}
