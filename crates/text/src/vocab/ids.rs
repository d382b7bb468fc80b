//! Tokens with a role: start, end, turns, fill-in-the-middle, and the set that ends a generation.

use firth_gguf::{KeyError, Metadata};

use crate::tokens::{TokenType, Tokens};

/// Ids of tokens with a role; `None` where the vocabulary has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SpecialIds {
    /// Start of text.
    pub bos: Option<u32>,
    /// End of text.
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// End of message.
    pub eom: Option<u32>,
    /// Unknown text.
    pub unk: Option<u32>,
    /// Separator.
    pub sep: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
    /// Mask.
    pub mask: Option<u32>,
    /// Fill in the middle: before the part that comes first.
    pub fim_pre: Option<u32>,
    /// Fill in the middle: before the part that comes last.
    pub fim_suf: Option<u32>,
    /// Fill in the middle: before the part to write.
    pub fim_mid: Option<u32>,
    /// Fill in the middle: padding.
    pub fim_pad: Option<u32>,
    /// Fill in the middle: before a repository's name.
    pub fim_rep: Option<u32>,
    /// Fill in the middle: between files.
    pub fim_sep: Option<u32>,
}

type Role = fn(&mut SpecialIds) -> &mut Option<u32>;

/// Key endings and the roles they set. Later ones overwrite earlier ones.
const KEYS: &[(&str, Role)] = &[
    ("bos_token_id", |s| &mut s.bos),
    ("eos_token_id", |s| &mut s.eos),
    ("eot_token_id", |s| &mut s.eot),
    ("eom_token_id", |s| &mut s.eom),
    ("unknown_token_id", |s| &mut s.unk),
    // Misspelt in the format itself.
    ("seperator_token_id", |s| &mut s.sep),
    ("padding_token_id", |s| &mut s.pad),
    ("mask_token_id", |s| &mut s.mask),
    ("fim_pre_token_id", |s| &mut s.fim_pre),
    ("fim_suf_token_id", |s| &mut s.fim_suf),
    ("fim_mid_token_id", |s| &mut s.fim_mid),
    ("fim_pad_token_id", |s| &mut s.fim_pad),
    ("fim_rep_token_id", |s| &mut s.fim_rep),
    ("fim_sep_token_id", |s| &mut s.fim_sep),
    // Deprecated names of three of them.
    ("prefix_token_id", |s| &mut s.fim_pre),
    ("suffix_token_id", |s| &mut s.fim_suf),
    ("middle_token_id", |s| &mut s.fim_mid),
];

/// Texts by which a role is found where no key names it, in order of preference.
const NAMES: &[(Role, &[&str])] = &[
    (
        |s| &mut s.eot,
        &[
            "<|eot_id|>",
            "<|im_end|>",
            "<|end|>",
            "<end_of_turn>",
            "<|endoftext|>",
            "<|end_of_text|>",
            "<EOT>",
            "_<EOT>",
            "[EOT]",
            "<｜end▁of▁sentence｜>",
            "<end_of_utterance>",
        ],
    ),
    (|s| &mut s.eom, &["<|eom_id|>"]),
    (
        |s| &mut s.fim_pre,
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        |s| &mut s.fim_suf,
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        |s| &mut s.fim_mid,
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    (|s| &mut s.fim_pad, &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"]),
    (|s| &mut s.fim_rep, &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"]),
    (|s| &mut s.fim_sep, &["<|file_sep|>"]),
];

/// Texts of tokens that end a generation in any vocabulary.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Texts that always print although files mark them as control tokens.
const PRINTED: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

impl SpecialIds {
    /// Drops defaults outside the vocabulary, then reads the keys. An id that a key puts outside is ignored
    /// with a warning.
    pub(super) fn read(
        &mut self,
        m: &Metadata,
        n_tokens: usize,
        warnings: &mut Vec<String>,
    ) -> Result<(), KeyError> {
        for (_, role) in KEYS {
            let id = role(self);
            *id = id.filter(|&id| (id as usize) < n_tokens);
        }
        for (name, role) in KEYS {
            let key = format!("tokenizer.ggml.{name}");
            // -1 stands for "none" in files of some converters, so a value that is no u32 is out of range too.
            let id = match m.u32(&key) {
                Err(KeyError::Range { found, .. }) => Some(Err(found)),
                other => other?.map(|id| if (id as usize) < n_tokens { Ok(id) } else { Err(id.into()) }),
            };
            match id {
                Some(Ok(id)) => *role(self) = Some(id),
                Some(Err(id)) => {
                    warnings.push(format!("key `{key}` is {id}, outside the {n_tokens} tokens: ignored"));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Finds roles by name where no key gave them; what is found becomes a control token.
    pub(super) fn search(&mut self, tokens: &mut Tokens) {
        for (role, names) in NAMES {
            if role(self).is_none() {
                let found = names.iter().find_map(|name| tokens.id(name.as_bytes()));
                found.iter().for_each(|&id| tokens.add_control(id));
                *role(self) = found;
            }
        }
    }

    /// The tokens that end a generation, in ascending order.
    ///
    /// Marks tokens on the way: ends become control tokens, and some control tokens become printable text.
    pub(super) fn ends(&self, tokens: &mut Tokens) -> Vec<u32> {
        let mut ends = [self.fim_pad, self.fim_rep, self.fim_sep].into_iter().flatten().collect::<Vec<_>>();
        for id in ENDS.iter().filter_map(|name| tokens.id(name.as_bytes())).collect::<Vec<_>>() {
            tokens.add_control(id);
            ends.push(id);
        }
        for id in PRINTED.iter().filter_map(|name| tokens.id(name.as_bytes())).collect::<Vec<_>>() {
            tokens.set_kind(id, TokenType::UserDefined);
        }
        ends.extend([self.eos, self.eot, self.eom].into_iter().flatten());
        ends.sort_unstable();
        ends.dedup();
        without_inner_ends(tokens, &mut ends);
        ends
    }
}

/// Takes two texts out again that end only a part of the answer where the vocabulary marks parts.
fn without_inner_ends(tokens: &mut Tokens, ends: &mut Vec<u32>) {
    let id = |text: &str| tokens.id(text.as_bytes()).filter(|id| ends.contains(id));
    let has = |text| id(text).is_some();
    let call = has("<|call|>") || has("<|calls|>");
    let parts = (has("<|return|>") || has("<|flush|>")) && call;
    let end = id("<|end|>").filter(|_| parts);
    let close = id("</s>").filter(|_| has("<|tool_response>") || has("<|plamo:eos|>"));
    for (id, kind) in [(end, TokenType::UserDefined), (close, TokenType::Normal)] {
        if let Some(id) = id {
            tokens.set_kind(id, kind);
            ends.retain(|&end| end != id);
        }
    }
}
