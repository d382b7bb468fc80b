//! `firth chat`: a conversation in the terminal, or one turn a line where stdin is none.

use std::io::{BufRead, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, Result, bail};
use firth::{ChatOptions, Conversation, GenerateOptions, Model};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::args::Chat;
use crate::progress::{go_on, listen};

const HELP: &str = "\
/clear      forgets the conversation
/save FILE  writes it to FILE, and what was computed for it to FILE.state
/load FILE  goes on with a conversation that was saved
/help       this list
Ctrl-C ends an answer, Ctrl-D the program.";

/// Runs the command.
pub fn chat(a: Chat) -> Result<()> {
    let file = super::open(a.model.as_deref(), &a.talk.common.override_kv)?;
    if a.talk.chat_template.is_none() && !file.metadata().contains("tokenizer.chat_template") {
        bail!("the model file has no chat template; give one with --chat-template FILE");
    }
    let model = super::load_to_talk(file, &a.talk, 1)?;
    let options = GenerateOptions {
        params: Some(super::sampling::params(&model, &a.talk.sampling)?),
        max_tokens: a.n,
        stop: a.talk.sampling.stop.clone(),
        ignore_eos: a.talk.sampling.ignore_eos,
        ..GenerateOptions::default()
    };
    let conversation = Conversation::new(a.system.clone(), ChatOptions::default());
    let mut chat = Session { model, conversation, options };
    match std::io::stdin().is_terminal() {
        true => chat.with_person(),
        false => chat.with_lines(),
    }
}

struct Session {
    model: Model,
    conversation: Conversation,
    options: GenerateOptions,
}

impl Session {
    /// What goes wrong is said, and the conversation goes on.
    fn with_person(&mut self) -> Result<()> {
        let mut editor = DefaultEditor::new().context("the terminal")?;
        eprintln!("/help lists what can be done.");
        loop {
            match editor.readline("> ") {
                Ok(line) => {
                    let _ = editor.add_history_entry(&line);
                    if let Err(e) = self.line(&line) {
                        eprintln!("firth: {e:#}");
                    }
                }
                Err(ReadlineError::Interrupted) => eprintln!("Ctrl-D ends the program."),
                Err(ReadlineError::Eof) => return Ok(()),
                Err(e) => return Err(e).context("the terminal"),
            }
        }
    }

    /// One turn a line; the first that fails ends the program.
    fn with_lines(&mut self) -> Result<()> {
        for line in std::io::stdin().lock().lines() {
            self.line(&line.context("reading a turn from stdin")?)?;
        }
        Ok(())
    }

    fn line(&mut self, line: &str) -> Result<()> {
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match (word, rest.trim()) {
            ("", _) => Ok(()),
            ("/help", _) => {
                eprintln!("{HELP}");
                Ok(())
            }
            ("/clear", _) => {
                self.conversation.clear();
                Ok(())
            }
            ("/save" | "/load", "") => bail!("{word} needs the name of a file"),
            ("/save", path) => Ok(self.conversation.save(&mut self.model, Path::new(path))?),
            ("/load", path) => self.load(Path::new(path)),
            (word, _) if word.starts_with('/') => bail!("no command `{word}`; /help lists them"),
            _ => self.say(line),
        }
    }

    fn load(&mut self, path: &Path) -> Result<()> {
        let (conversation, state) = Conversation::load(&mut self.model, path, ChatOptions::default())?;
        self.conversation = conversation;
        if let Err(e) = state {
            eprintln!("firth: the next turn computes the conversation again: {e}");
        }
        Ok(())
    }

    fn say(&mut self, text: &str) -> Result<()> {
        let mut out = std::io::stdout().lock();
        let mut gone = None;
        let listening = listen();
        self.conversation.say(&mut self.model, text, &self.options, &mut |text| {
            if !text.is_empty()
                && let Err(e) = out.write_all(text.as_bytes()).and_then(|()| out.flush())
            {
                gone = Some(e);
                return ControlFlow::Break(());
            }
            go_on()
        })?;
        drop(listening);
        match gone {
            Some(e) => Err(e).context("writing the answer"),
            None => Ok(writeln!(out)?),
        }
    }
}
