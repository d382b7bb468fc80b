//! What a state file says before its pages.
//!
//! Numbers are little-endian. The file is: [`Prefix`], [`Header`], then for each state in the header's order its held
//! pages by index, or its slot where the sequence has tokens; last the [`Checksum`](super::Checksum) of all before it.

use firth_memory::{Books, StateBooks};

/// Of a file that holds a sequence.
pub const MAGIC: [u8; 8] = *b"FIRTHSEQ";
/// Of this layout.
pub const VERSION: u32 = 1;

/// The first bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    pub magic: [u8; 8],
    pub version: u32,
    /// Which bits: [`NUMERICS`](super::NUMERICS).
    pub numerics: u32,
    /// Bytes of the header.
    pub header: u64,
    /// Bytes of the whole file.
    pub file: u64,
}

impl Prefix {
    pub const BYTES: usize = 32;

    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.numerics.to_le_bytes());
        out.extend(self.header.to_le_bytes());
        out.extend(self.file.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8; Self::BYTES]) -> Prefix {
        let mut r = Reader(bytes);
        let magic = std::array::from_fn(|i| bytes[i]);
        let mut parts = || {
            r.take(8)?;
            Some((r.u32()?, r.u32()?, r.u64()?, r.u64()?))
        };
        let (version, numerics, header, file) = parts().expect("a prefix has all its parts");
        Prefix { magic, version, numerics, header, file }
    }
}

/// Which model and settings a sequence belongs to, and its books.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Hash of the model.
    pub model: u64,
    /// Type of keys and values.
    pub kv: String,
    /// The longest draft that the slots were made for.
    pub longest_draft: u64,
    pub states: Vec<StateEntry>,
    pub books: Books,
}

/// A state of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateEntry {
    pub name: String,
    /// Name of its device.
    pub device: String,
    /// Its page group; `None` where it lies in slots.
    pub group: Option<u32>,
    /// Bytes of a page or slot.
    pub bytes: u64,
}

const NO_GROUP: u32 = u32::MAX;

impl Header {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.model.to_le_bytes());
        text(&mut out, &self.kv);
        out.extend(self.longest_draft.to_le_bytes());
        out.extend((self.states.len() as u32).to_le_bytes());
        for s in &self.states {
            text(&mut out, &s.name);
            text(&mut out, &s.device);
            out.extend(s.group.unwrap_or(NO_GROUP).to_le_bytes());
            out.extend(s.bytes.to_le_bytes());
        }
        out.extend((self.books.first_pages.len() as u32).to_le_bytes());
        self.books.first_pages.iter().for_each(|n| out.extend((*n as u64).to_le_bytes()));
        out.extend((self.books.tokens.len() as u32).to_le_bytes());
        self.books.tokens.iter().for_each(|id| out.extend(id.to_le_bytes()));
        out.extend(u32::from(self.books.state.is_some()).to_le_bytes());
        let state = self.books.state.unwrap_or(StateBooks { base: 0, top: 0 });
        [state.base, state.top].iter().for_each(|n| out.extend((*n as u64).to_le_bytes()));
        out
    }

    /// `None` where the bytes are no header, or there are more of them.
    pub fn decode(bytes: &[u8]) -> Option<Header> {
        let mut r = Reader(bytes);
        let model = r.u64()?;
        let kv = r.text()?;
        let longest_draft = r.u64()?;
        let states = r.list(20, |r| {
            let (name, device) = (r.text()?, r.text()?);
            let (group, bytes) = (r.u32()?, r.u64()?);
            Some(StateEntry { name, device, group: (group != NO_GROUP).then_some(group), bytes })
        })?;
        let first_pages = r.list(8, |r| r.index())?;
        let tokens = r.list(4, Reader::u32)?;
        let has_state = r.u32()?;
        let state = StateBooks { base: r.index()?, top: r.index()? };
        let books = Books { tokens, first_pages, state: (has_state == 1).then_some(state) };
        (r.0.is_empty() && has_state <= 1).then_some(Header { model, kv, longest_draft, states, books })
    }
}

fn text(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u32).to_le_bytes());
    out.extend(s.as_bytes());
}

/// Takes values off the front; `None` where the bytes end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn index(&mut self) -> Option<usize> {
        usize::try_from(self.u64()?).ok()
    }

    fn text(&mut self) -> Option<String> {
        let n = self.u32()? as usize;
        Some(std::str::from_utf8(self.take(n)?).ok()?.to_owned())
    }

    /// A counted list of items of at least `least` bytes each; nothing is allocated for more than the bytes can hold.
    fn list<T>(&mut self, least: usize, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let n = self.u32()? as usize;
        if n > self.0.len() / least {
            return None;
        }
        (0..n).map(|_| item(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_shorter_or_longer() {
        let state = |group| StateEntry { name: "blk.0".into(), device: "cpu".into(), group, bytes: 7 };
        let state_books = StateBooks { base: 1, top: 3 };
        let books = Books { tokens: vec![5, 6, 7], first_pages: vec![0, 4], state: Some(state_books) };
        let states = vec![state(Some(0)), state(None)];
        let header = Header { model: 9, kv: "f16".into(), longest_draft: 3, states, books };
        let mut bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        for n in 0..bytes.len() {
            assert_eq!(Header::decode(&bytes[..n]), None, "{n} bytes");
        }
        bytes.push(0);
        assert_eq!(Header::decode(&bytes), None);
        let prefix = Prefix { magic: MAGIC, version: 1, numerics: 2, header: 3, file: 4 };
        assert_eq!(Prefix::decode(&prefix.encode().try_into().unwrap()), prefix);
    }
}
