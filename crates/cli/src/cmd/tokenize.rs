//! `firth tokenize` and `firth detokenize`.

use std::io::{Read, Write};

use anyhow::{Context, Result, bail};
use firth_text::{Encode, Vocab};

use crate::args::{Detokenize, Tokenize};

/// Runs `firth tokenize`.
pub fn tokenize(a: Tokenize) -> Result<()> {
    let vocab = vocab(&a.model, &a.override_kv)?;
    let text = match a.text {
        Some(text) => text,
        None => stdin()?,
    };
    let ids = vocab.encode(&text, Encode { add_special: a.bos, parse_special: a.special })?;
    if a.ids {
        println!("{}", serde_json::to_string(&ids)?);
        return Ok(());
    }
    for id in ids {
        println!("{id:>7}  {:?}", String::from_utf8_lossy(vocab.piece(id, true)));
    }
    Ok(())
}

/// Runs `firth detokenize`.
pub fn detokenize(a: Detokenize) -> Result<()> {
    let vocab = vocab(&a.model, &[])?;
    let text = stdin()?;
    let numbers = text.split(|c: char| !c.is_ascii_digit()).filter(|w| !w.is_empty());
    let ids: Vec<u32> =
        numbers.map(|w| w.parse().with_context(|| format!("`{w}` is no id"))).collect::<Result<_>>()?;
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocab.len()) {
        bail!("token id {id} is outside the vocabulary of {}", vocab.len());
    }
    std::io::stdout().write_all(&vocab.decode(&ids, a.special)).context("writing the text")?;
    println!();
    Ok(())
}

fn vocab(model: &str, overrides: &[String]) -> Result<Vocab> {
    let file = super::open(Some(model), overrides)?;
    let vocab = Vocab::from_metadata(file.metadata())?;
    for w in vocab.warnings() {
        eprintln!("firth: warning: {w}");
    }
    Ok(vocab)
}

fn stdin() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("reading stdin")?;
    Ok(text)
}
