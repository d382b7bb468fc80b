//! A file written field by field, so that each field can be wrong.
#![allow(dead_code, reason = "each test uses its part")]

/// Bytes of a file in the making.
#[derive(Clone)]
pub struct Raw(pub Vec<u8>);

impl Raw {
    /// Magic, version and the two counts.
    pub fn new(version: u32, n_tensors: u64, n_keys: u64) -> Raw {
        let mut raw = Raw(b"GGUF".to_vec());
        raw.0.extend(version.to_le_bytes());
        raw.0.extend(n_tensors.to_le_bytes());
        raw.0.extend(n_keys.to_le_bytes());
        raw
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Raw {
        self.0.extend(bytes);
        self
    }

    pub fn u32(self, n: u32) -> Raw {
        self.bytes(&n.to_le_bytes())
    }

    pub fn u64(self, n: u64) -> Raw {
        self.bytes(&n.to_le_bytes())
    }

    pub fn string(self, s: &[u8]) -> Raw {
        self.u64(s.len() as u64).bytes(s)
    }

    /// A key with a u32.
    pub fn key_u32(self, key: &str, value: u32) -> Raw {
        self.string(key.as_bytes()).u32(4).u32(value)
    }

    /// A key and the element type and length of its array, without elements.
    pub fn key_array(self, key: &str, element_type: u32, n: u64) -> Raw {
        self.string(key.as_bytes()).u32(9).u32(element_type).u64(n)
    }

    /// An entry of the directory.
    pub fn tensor(self, name: &str, shape: &[u64], dtype: u32, offset: u64) -> Raw {
        let raw = self.string(name.as_bytes()).u32(shape.len() as u32);
        shape.iter().fold(raw, |raw, &n| raw.u64(n)).u32(dtype).u64(offset)
    }

    /// Zeros up to a multiple of `alignment`, then `n_data` more.
    pub fn data(mut self, alignment: usize, n_data: usize) -> Raw {
        self.0.resize(self.0.len().next_multiple_of(alignment) + n_data, 0);
        self
    }
}
