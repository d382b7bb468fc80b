//! Greedy merging of neighbours: the common half of byte-pair encoding and of SentencePiece's BPE.

use crate::queue::Queue;

/// Marks "no pair" and "no neighbour".
const NONE: u32 = u32::MAX;

/// A symbol of the word being merged.
#[derive(Clone, Copy, Debug)]
struct Node {
    prev: u32,
    next: u32,
    /// First byte in the text.
    start: u32,
    /// End byte in the text.
    end: u32,
    /// What the caller knows the symbol by.
    symbol: u32,
    /// Key of the pair with the next symbol; [`NONE`] where they do not merge or the node is dead.
    key: u32,
    /// What that pair becomes.
    merged: u32,
}

/// A symbol of the text: its bytes and the caller's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbol {
    /// First byte in the text.
    pub start: usize,
    /// End byte in the text.
    pub end: usize,
    /// The caller's name.
    pub symbol: u32,
}

/// Working memory of a merge, reused from word to word.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    nodes: Vec<Node>,
    queue: Queue,
}

impl Merger {
    /// Forgets the word.
    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
    }

    /// Adds the next symbol of the word, which reaches from the last one's end to `end`.
    pub(crate) fn push(&mut self, start: usize, end: usize, symbol: u32) {
        let at = self.nodes.len() as u32;
        if let Some(last) = self.nodes.last_mut() {
            last.next = at;
        }
        let prev = if at == 0 { NONE } else { at - 1 };
        let (start, end) = (start as u32, end as u32);
        self.nodes.push(Node { prev, next: NONE, start, end, symbol, key: NONE, merged: NONE });
    }

    /// Merges until no pair is left: lowest key first, of equal keys the leftmost.
    ///
    /// `pair` says of two neighbours by which key they merge (below `u32::MAX`) and into what.
    pub(crate) fn merge(&mut self, pair: impl Fn(Symbol, Symbol) -> Option<(u32, u32)>) {
        for left in 0..self.nodes.len().saturating_sub(1) {
            self.weigh(left, &pair);
        }
        while let Some(entry) = self.queue.pop() {
            let (key, left) = ((entry >> 32) as u32, entry as u32 as usize);
            // An entry that lost its pair is skipped. One whose left symbol has meanwhile found another pair
            // of the same key stands exactly where that pair's own entry stands.
            if self.nodes[left].key != key {
                continue;
            }
            self.join(left);
            self.weigh(left, &pair);
            let prev = self.nodes[left].prev;
            if prev != NONE {
                self.weigh(prev as usize, &pair);
            }
        }
    }

    /// Notes the pair that starts at `left` and queues it.
    fn weigh(&mut self, left: usize, pair: &impl Fn(Symbol, Symbol) -> Option<(u32, u32)>) {
        let node = self.nodes[left];
        let found =
            if node.next == NONE { None } else { pair(self.symbol(left), self.symbol(node.next as usize)) };
        let (key, merged) = found.unwrap_or((NONE, NONE));
        (self.nodes[left].key, self.nodes[left].merged) = (key, merged);
        if key != NONE {
            self.queue.push(u64::from(key) << 32 | left as u64);
        }
    }

    fn join(&mut self, left: usize) {
        let node = self.nodes[left];
        let right = self.nodes[node.next as usize];
        self.nodes[node.next as usize].key = NONE;
        self.nodes[left] = Node { next: right.next, end: right.end, symbol: node.merged, ..node };
        if right.next != NONE {
            self.nodes[right.next as usize].prev = left as u32;
        }
    }

    fn symbol(&self, at: usize) -> Symbol {
        let node = &self.nodes[at];
        Symbol { start: node.start as usize, end: node.end as usize, symbol: node.symbol }
    }

    /// The symbols that are left, in order.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = Symbol> {
        let first = if self.nodes.is_empty() { NONE } else { 0 };
        let after = |&at: &u32| Some(self.nodes[at as usize].next).filter(|&next| next != NONE);
        std::iter::successors(Some(first).filter(|&at| at != NONE), after).map(|at| self.symbol(at as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, merges: &[&str], expected: &[&str]) {
        let mut merger = Merger::default();
        for i in 0..text.len() {
            merger.push(i, i + 1, 0);
        }
        merger.merge(|a, b| {
            let rank = merges.iter().position(|m| *m == &text[a.start..b.end])?;
            Some((rank as u32, 0))
        });
        let found = merger.symbols().map(|s| &text[s.start..s.end]).collect::<Vec<_>>();
        assert_eq!(found, expected);
    }

    #[test]
    fn lowest_key_first_then_leftmost() {
        check("aaa", &["aa"], &["aa", "a"]);
        check("abc", &["bc", "ab"], &["a", "bc"]);
        check("aaaa", &["aa", "aaaa"], &["aaaa"]);
        check("abcd", &["ab", "abc", "abcd"], &["abcd"]);
        check("", &["ab"], &[]);
        check("x", &["ab"], &["x"]);
    }
}
