//! The tensors of a file, asked for by name and shape.

use std::cell::RefCell;
use std::collections::BTreeSet;

use firth_gguf::{Gguf, Metadata};
use firth_graph::{Graph, Node, Part, Shape, WeightSource};
use firth_quant::Dtype;

use crate::error::ModelError;

/// A tensor of the file that a model uses.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// The type that kernels see: the file's, or F32 for what is read by element.
    pub dtype: Dtype,
    /// Its axes, fastest first.
    pub shape: Vec<usize>,
    /// Where it is placed.
    pub part: Part,
}

impl Tensor {
    /// The tensor as a weight of a graph.
    pub fn node(&self, g: &mut Graph) -> Node {
        g.weight(WeightSource::File(self.name.clone()), self.dtype, Shape::fixed(&self.shape), self.part)
    }
}

/// A file's tensors and keys while a model is made of them. Missing and misshapen tensors are collected, so
/// that one error names them all.
pub struct Weights<'a> {
    file: &'a Gguf,
    arch: String,
    wrong: RefCell<Vec<String>>,
    used: RefCell<BTreeSet<String>>,
}

impl<'a> Weights<'a> {
    /// Over a file of architecture `arch`.
    pub fn new(file: &'a Gguf, arch: &str) -> Self {
        Weights { file, arch: arch.into(), wrong: RefCell::default(), used: RefCell::default() }
    }

    /// The file's metadata.
    pub fn metadata(&self) -> &'a Metadata {
        self.file.metadata()
    }

    /// The architecture's name.
    pub fn arch(&self) -> &str {
        &self.arch
    }

    /// The full name of an architecture's key.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    /// Whether the file has a key of the architecture.
    pub fn has_key(&self, name: &str) -> bool {
        self.metadata().get(&self.key(name)).is_some()
    }

    /// Whether the file has a tensor.
    pub fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// A matrix or table `name.weight` in the file's type.
    pub fn matrix(&self, name: &str, shape: &[usize], part: Part) -> Tensor {
        self.tensor(&format!("{name}.weight"), shape, part, false)
    }

    /// As [`Weights::matrix`], when the file has it.
    pub fn matrix_opt(&self, name: &str, shape: &[usize], part: Part) -> Option<Tensor> {
        self.has(&format!("{name}.weight")).then(|| self.matrix(name, shape, part))
    }

    /// A vector read by element, full name with suffix; widened to F32 at load.
    pub fn vector(&self, name: &str, n: usize, part: Part) -> Tensor {
        self.tensor(name, &[n], part, true)
    }

    /// As [`Weights::vector`], when the file has it.
    pub fn vector_opt(&self, name: &str, n: usize, part: Part) -> Option<Tensor> {
        self.has(name).then(|| self.vector(name, n, part))
    }

    /// A table read by element, full name with suffix; widened to F32 at load.
    pub fn table(&self, name: &str, shape: &[usize], part: Part) -> Tensor {
        self.tensor(name, shape, part, true)
    }

    fn tensor(&self, name: &str, shape: &[usize], part: Part, by_element: bool) -> Tensor {
        let mut out = Tensor { name: name.into(), dtype: Dtype::F32, shape: shape.to_vec(), part };
        let Some(info) = self.file.tensor(name) else {
            self.wrong.borrow_mut().push(format!("`{name}` is missing, expected shape {shape:?}"));
            return out;
        };
        self.used.borrow_mut().insert(name.into());
        let found: Vec<u64> = squeezed(&info.shape);
        let expected: Vec<u64> = squeezed(&shape.iter().map(|n| *n as u64).collect::<Vec<_>>());
        if found != expected {
            let line = format!("`{name}` has shape {:?}, expected {shape:?}", info.shape);
            self.wrong.borrow_mut().push(line);
        }
        if !by_element {
            out.dtype = info.dtype;
        }
        out
    }

    /// The values of a small tensor, when the file has it with `n` of them.
    pub fn values(&self, name: &str, n: usize) -> Option<Vec<f32>> {
        let info = self.file.tensor(name)?;
        self.used.borrow_mut().insert(name.into());
        if info.shape.iter().product::<u64>() != n as u64 {
            self.wrong.borrow_mut().push(format!("`{name}` has shape {:?}, expected [{n}]", info.shape));
            return None;
        }
        let mut out = vec![0.0; n];
        firth_quant::decode(info.dtype, self.file.data(info), &mut out);
        Some(out)
    }

    /// The first row of a matrix, when the file has it.
    pub fn first_row(&self, name: &str) -> Option<Vec<f32>> {
        let info = self.file.tensor(name)?;
        let n = *info.shape.first()? as usize;
        let mut out = vec![0.0; n];
        firth_quant::decode(info.dtype, &self.file.data(info)[..info.dtype.row_bytes(n)?], &mut out);
        Some(out)
    }

    /// The length of axis `i` of a tensor.
    pub fn axis(&self, name: &str, i: usize) -> Option<usize> {
        let info = self.file.tensor(name)?;
        usize::try_from(info.shape.get(i).copied().unwrap_or(1)).ok()
    }

    /// Fails with every missing or misshapen tensor, if there is one.
    pub fn finish(&self) -> Result<(), ModelError> {
        let wrong = std::mem::take(&mut *self.wrong.borrow_mut());
        if wrong.is_empty() { Ok(()) } else { Err(ModelError::Tensors(wrong)) }
    }

    /// Tensors of the file that nobody asked for.
    pub fn unused(&self) -> Vec<String> {
        let used = self.used.borrow();
        self.file.tensors().iter().map(|t| t.name.clone()).filter(|n| !used.contains(n)).collect()
    }
}

/// A shape without axes of length 1, which files have or leave out.
fn squeezed(shape: &[u64]) -> Vec<u64> {
    shape.iter().copied().filter(|d| *d != 1).collect()
}
