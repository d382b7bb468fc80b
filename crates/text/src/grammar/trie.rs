//! The tree of a vocabulary's texts, as `toktrie` wants it.

use std::sync::Arc;

use toktrie::{INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use super::GrammarError;
use crate::vocab::Vocab;

/// Longer tokens are never allowed: the tree counts levels in ten bits.
const MAX_TOKEN: usize = 1000;
/// Nodes of a tree, by the width of its counters.
const MAX_NODES: usize = (1 << 22) - 1;
/// Ids, by the width of a node's token.
const MAX_IDS: usize = (1 << 24) - 1;

struct Env {
    trie: TokTrie,
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, text: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(text)
    }

    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// A vocabulary's tree; control tokens are in it under a byte that no text has. Time is that of sorting all texts.
pub(super) fn environment(vocab: &Vocab) -> Result<TokEnv, GrammarError> {
    let failed = |what: String| Err(GrammarError::Vocab(what));
    if !vocab.has_text() || vocab.is_empty() {
        return failed("it has none".into());
    }
    if vocab.len() > MAX_IDS {
        return failed(format!("it has {} tokens, expected at most {MAX_IDS}", vocab.len()));
    }
    let words: Vec<Vec<u8>> = vocab.ids().map(|id| word(vocab, id)).collect();
    let nodes = count_nodes(&words);
    if nodes > MAX_NODES {
        return failed(format!("its tree has {nodes} nodes, expected at most {MAX_NODES}"));
    }
    let ends = vocab.end_tokens();
    let info = TokRxInfo::new(words.len() as u32, ends.first().copied().unwrap_or(INVALID_TOKEN));
    let trie = TokTrie::from(&info, &words);
    let trie = if ends.is_empty() { trie } else { trie.with_eos_tokens(ends) };
    Ok(Arc::new(Env { trie }))
}

fn word(vocab: &Vocab, id: u32) -> Vec<u8> {
    let text = vocab.piece(id, false);
    // A lone byte that begins no character would look like a control token.
    if !text.is_empty() && text[0] != TokTrie::SPECIAL_TOKEN_MARKER && text.len() <= MAX_TOKEN {
        return text.to_vec();
    }
    let hidden = vocab.piece(id, true);
    match text.is_empty() && !hidden.is_empty() && hidden.len() < MAX_TOKEN {
        true => [&[TokTrie::SPECIAL_TOKEN_MARKER], hidden].concat(),
        false => Vec::new(),
    }
}

/// Nodes of the tree: of each text, in order, the bytes that it does not share with the one before it. Equal texts are
/// siblings.
fn count_nodes(words: &[Vec<u8>]) -> usize {
    let mut sorted: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    sorted.sort_unstable();
    let shared = |a: &[u8], b: &[u8]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let own =
        |pair: &[&[u8]]| (pair[1].len() - shared(pair[0], pair[1])).max(usize::from(pair[0] == pair[1]));
    1 + sorted.first().map_or(0, |w| w.len()) + sorted.windows(2).map(own).sum::<usize>()
}
