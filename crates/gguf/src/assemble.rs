//! The tensors of a model that is put together from files of another format.

use firth_quant::Dtype;

/// A tensor to be: its place in GGUF, and where its bytes come from.
pub struct Assembled {
    /// Its name.
    pub name: String,
    /// Its axes, fastest first, 1 to 4.
    pub shape: Vec<u64>,
    /// Its type.
    pub dtype: Dtype,
    /// Its bytes.
    pub data: TensorData,
}

/// Where the bytes of a tensor come from.
pub enum TensorData {
    /// They lie in a file as they are.
    InFile {
        /// Which of the files.
        file: usize,
        /// Bytes before them.
        offset: u64,
    },
    /// They are made when first asked for, as many as shape and type say, and stay in memory.
    Made(Box<dyn Fn() -> Vec<u8> + Send + Sync>),
}
