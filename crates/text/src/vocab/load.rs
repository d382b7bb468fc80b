//! Reading a vocabulary from a file's metadata.

use firth_gguf::{KeyError, Metadata};

use super::bpe::Bpe;
use super::dna::Dna;
use super::ids::SpecialIds;
use super::plamo2::Plamo2;
use super::rwkv::{Rwkv, unescape};
use super::ugm::Ugm;
use super::wpm::Wpm;
use super::{MAX_TOKENS, Vocab, VocabError, VocabKind};
use crate::pre::PreTokeniser;
use crate::special::{Specials, Strip};
use crate::tokens::{TokenType, Tokens};

/// What the name of a tokeniser settles before the keys are read.
struct Defaults {
    kind: VocabKind,
    pre: Option<&'static PreTokeniser>,
    ids: SpecialIds,
    add_bos: bool,
    add_eos: bool,
    add_sep: bool,
    add_space_prefix: bool,
    clean_spaces: bool,
}

impl Vocab {
    /// Reads the vocabulary of a file.
    ///
    /// # Errors
    /// A tokeniser that is unknown or not run, an unknown pre-tokeniser, a key that is missing or of another
    /// type, a list that is too short, two tokens of one text.
    pub fn from_metadata(m: &Metadata) -> Result<Vocab, VocabError> {
        let mut warnings = Vec::new();
        let d = defaults(m, &mut warnings)?;
        let mut tokens = if d.kind == VocabKind::None { Tokens::default() } else { read_tokens(m)? };
        let n_tokens = if d.kind == VocabKind::None { dummy_tokens(m)? } else { tokens.len() };
        check_count(n_tokens)?;
        let bpe = d.pre.map(|pre| Bpe::new(m, pre, &tokens)).transpose()?;
        let wpm = (d.kind == VocabKind::Wpm).then(|| Wpm::new(m, &tokens)).transpose()?;
        let is = |kind| d.kind == kind;
        let prefix = m.bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(d.add_space_prefix);
        let ugm = is(VocabKind::Ugm).then(|| Ugm::new(m, &tokens, prefix)).transpose()?;
        let texts = tokens.ids().map(|id| unescape(tokens.text(id)));
        let rwkv = is(VocabKind::Rwkv).then(|| Rwkv::new(texts)).transpose()?;
        let plamo2 = is(VocabKind::Plamo2).then(|| Plamo2::new(&tokens)).transpose()?;
        let with_dna = m.str("tokenizer.ggml.model")? == Some("hybriddna");
        let dna = with_dna.then(|| Dna::new(&tokens)).flatten();
        let mut ids = d.ids;
        ids.read(m, n_tokens, &mut warnings)?;
        ids.search(&mut tokens);
        let ends = ids.ends(&mut tokens);
        let flag = |key: &str, default| {
            Ok::<_, KeyError>(m.bool(&format!("tokenizer.ggml.{key}"))?.unwrap_or(default))
        };
        let forced = d.pre.is_some_and(|pre| pre.force_bos);
        let mut vocab = Vocab {
            kind: d.kind,
            specials: Specials::default(),
            ends,
            suppressed: suppressed(m, n_tokens)?,
            printed: Vec::new(),
            bounds: Vec::new(),
            n_ids: n_tokens,
            add_bos: flag("add_bos_token", d.add_bos)? || forced,
            add_eos: flag("add_eos_token", d.add_eos)?,
            add_sep: flag("add_sep_token", d.add_sep)?,
            add_space_prefix: prefix,
            clean_spaces: d.clean_spaces,
            ids,
            tokens,
            bpe,
            dna,
            wpm,
            ugm,
            rwkv,
            plamo2,
            warnings,
        };
        vocab.settle();
        let strip = strips(m, &vocab.tokens)?;
        vocab.specials = Specials::new(&vocab.tokens, strip)?;
        Ok(vocab)
    }

    /// Fills in what tokens print and drops wishes that cannot be met.
    fn settle(&mut self) {
        self.bounds = vec![0];
        for id in self.tokens.ids() {
            self.print(id);
            self.bounds.push(self.printed.len());
        }
        for (wish, id, key) in [
            (&mut self.add_bos, self.ids.bos, "add_bos_token"),
            (&mut self.add_eos, self.ids.eos, "add_eos_token"),
        ] {
            if *wish && id.is_none() {
                *wish = false;
                self.warnings.push(format!(
                    "key `tokenizer.ggml.{key}` is set, but the file names no such token: ignored"
                ));
            }
        }
    }
}

fn check_count(found: usize) -> Result<(), VocabError> {
    if found < MAX_TOKENS { Ok(()) } else { Err(VocabError::TooMany { found }) }
}

fn defaults(m: &Metadata, warnings: &mut Vec<String>) -> Result<Defaults, VocabError> {
    let model = m.require_str("tokenizer.ggml.model")?;
    let plain = |kind| Defaults {
        kind,
        pre: None,
        ids: SpecialIds::default(),
        add_bos: false,
        add_eos: false,
        add_sep: false,
        add_space_prefix: false,
        clean_spaces: false,
    };
    match model {
        "none" | "no_vocab" => Ok(plain(VocabKind::None)),
        "test" => Ok(plain(VocabKind::Test)),
        "llama" => {
            let ids = SpecialIds { bos: Some(1), eos: Some(2), unk: Some(0), ..SpecialIds::default() };
            Ok(Defaults { ids, add_bos: true, add_space_prefix: true, ..plain(VocabKind::Spm) })
        }
        "bert" => {
            let ids = SpecialIds {
                bos: Some(101),
                unk: Some(100),
                sep: Some(102),
                pad: Some(0),
                mask: Some(103),
                ..SpecialIds::default()
            };
            let yes =
                Defaults { add_bos: true, add_sep: true, add_space_prefix: true, ..plain(VocabKind::Wpm) };
            Ok(Defaults { ids, clean_spaces: true, ..yes })
        }
        "t5" => {
            let ids = SpecialIds { eos: Some(1), unk: Some(2), pad: Some(0), ..SpecialIds::default() };
            Ok(Defaults { ids, add_eos: true, ..plain(VocabKind::Ugm) })
        }
        "rwkv" => Ok(plain(VocabKind::Rwkv)),
        "plamo2" => {
            let ids = SpecialIds {
                bos: Some(1),
                eos: Some(2),
                unk: Some(0),
                pad: Some(3),
                ..SpecialIds::default()
            };
            Ok(Defaults { ids, ..plain(VocabKind::Plamo2) })
        }
        "gpt2" | "gemma4" | "hybriddna" | "whitespace" => {
            let pre = pre_tokeniser(m, model, warnings)?;
            let eleven = if model == "gemma4" { None } else { Some(11) };
            let bos = if pre.no_bos { None } else { eleven };
            let ids = SpecialIds { bos, eos: eleven, ..SpecialIds::default() };
            let &PreTokeniser { add_bos, add_sep, clean_spaces, .. } = pre;
            Ok(Defaults { ids, pre: Some(pre), add_bos, add_sep, clean_spaces, ..plain(VocabKind::Bpe) })
        }
        _ => Err(VocabError::Model { found: model.to_owned() }),
    }
}

fn pre_tokeniser(
    m: &Metadata,
    model: &str,
    warnings: &mut Vec<String>,
) -> Result<&'static PreTokeniser, VocabError> {
    let found = if model == "gemma4" { Some("gemma4") } else { m.str("tokenizer.ggml.pre")? };
    const WORSE: &str = "text is cut by the default pre-tokeniser, and THE MODEL'S OUTPUT WILL PROBABLY BE WORSE; \
                         convert the file again, or name the right one by --override-kv \
                         tokenizer.ggml.pre=str:NAME";
    let known = found.and_then(PreTokeniser::named);
    match (found, known) {
        (None, _) => warnings.push(format!("key `tokenizer.ggml.pre` is missing: {WORSE}")),
        (Some(name), None) => {
            warnings.push(format!("key `tokenizer.ggml.pre` is `{name}`, which is no known name: {WORSE}"))
        }
        _ => {}
    }
    Ok(known.unwrap_or_else(|| PreTokeniser::named("default").expect("a row of the table")))
}

/// Number of ids of a file without tokens.
fn dummy_tokens(m: &Metadata) -> Result<usize, VocabError> {
    let Some(architecture) = m.str("general.architecture")? else { return Ok(0) };
    Ok(m.u32(&format!("{architecture}.vocab_size"))?.unwrap_or(0) as usize)
}

fn read_tokens(m: &Metadata) -> Result<Tokens, VocabError> {
    let texts = m.require_strings("tokenizer.ggml.tokens")?;
    check_count(texts.len())?;
    let types = list(m.i32s("tokenizer.ggml.token_type")?, "tokenizer.ggml.token_type", texts.len())?;
    let scores = list(m.f32s("tokenizer.ggml.scores")?, "tokenizer.ggml.scores", texts.len())?;
    let mut tokens = Tokens::default();
    tokens.reserve(texts.len(), texts.n_bytes());
    for i in 0..texts.len() {
        let named = if texts.get(i).is_empty() { format!("[EMPTY_{i}]") } else { String::new() };
        let text = if named.is_empty() { texts.get(i) } else { named.as_bytes() };
        let kind = types.as_ref().map_or(TokenType::Normal, |types| TokenType::from_number(types[i]));
        let score = scores.as_ref().map_or(0.0, |scores| scores[i]);
        tokens.push(text, kind, score).map_err(|first| VocabError::Duplicate {
            first,
            second: i as u32,
            text: String::from_utf8_lossy(text).into_owned(),
        })?;
    }
    Ok(tokens)
}

fn list<T>(list: Option<Vec<T>>, key: &'static str, expected: usize) -> Result<Option<Vec<T>>, VocabError> {
    match list.as_ref().map(Vec::len) {
        Some(found) if found < expected => Err(VocabError::Short { key, found, expected }),
        _ => Ok(list),
    }
}

fn suppressed(m: &Metadata, n_tokens: usize) -> Result<Vec<u32>, KeyError> {
    let ids = m.i32s("tokenizer.ggml.suppress_tokens")?.unwrap_or_default();
    let known = |id: i32| u32::try_from(id).ok().filter(|&id| (id as usize) < n_tokens);
    Ok(ids.into_iter().filter_map(known).collect())
}

/// Which tokens swallow white space around them. No key says so; it goes by names.
fn strips(m: &Metadata, tokens: &Tokens) -> Result<impl Fn(u32) -> Strip + use<>, KeyError> {
    let pre = m.str("tokenizer.ggml.pre")?.unwrap_or_default();
    let architecture = m.str("general.architecture")?.unwrap_or_default();
    let name = m.str("general.name")?.unwrap_or_default().to_lowercase();
    let has = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
    let mut left = None;
    let mut right = Vec::new();
    if has(pre, &["jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert"])
        || has(architecture, &["nomic-bert-moe", "jina-bert-v3"])
    {
        left = tokens.id(b"<mask>");
    } else if has(&name, &["phi-3", "phi3"]) {
        right = tokens.ids().filter(|&id| tokens.is_special(id)).collect();
        right.extend(tokens.id(b"</s>"));
        right.retain(|&id| !matches!(tokens.text(id), b"<unk>" | b"<s>" | b"<|endoftext|>"));
        right.sort_unstable();
    } else if has(&name, &["modern-bert"]) {
        left = tokens.id(b"[MASK]");
    }
    Ok(move |id| Strip { left: left == Some(id), right: right.binary_search(&id).is_ok() })
}
