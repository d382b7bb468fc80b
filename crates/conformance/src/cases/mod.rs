//! Cases of every op, as data.

pub mod attention;
mod elementwise;
mod experts;
mod layouts;
pub mod products;
pub mod recurrent;
mod rows;
pub mod slots;
pub mod tables;

use firth_graph::{Extent, Extents, Graph, Node, Part, Shape, Sym, WeightSource};
use firth_quant::Dtype;

use crate::harness::Case;

/// Row widths: one element, around the sixteen and 32 lanes, past 256, and a multiple of 16.
pub const WIDTHS: [usize; 5] = [1, 31, 33, 257, 64];

/// Row counts around tiles of six.
pub const ROWS: [usize; 7] = [0, 1, 2, 5, 6, 7, 13];

/// The groups of cases: [`all`], and [`test_groups`](crate::test_groups), a test for each.
macro_rules! groups {
    ($d:tt $($group:ident)*) => {
        /// Every case, by group.
        pub fn all() -> Vec<(&'static str, Vec<Case>)> {
            vec![$((stringify!($group), $group::cases())),*]
        }

        /// The cases of a group.
        pub fn group(name: &str) -> Vec<Case> {
            match name {
                $(stringify!($group) => $group::cases(),)*
                _ => panic!("no group of cases is called {name}"),
            }
        }

        /// A test for each group of cases, which gives its name to `check`.
        #[macro_export]
        macro_rules! test_groups {
            ($d check:path) => {
                $(
                    #[test]
                    fn $group() {
                        $d check(stringify!($group));
                    }
                )*
            };
        }
    };
}

groups!($ elementwise layouts rows experts products attention recurrent);

/// The sampler on so many rows of any parameters.
pub fn many_samples(rows: usize) -> Case {
    rows::many_samples(rows)
}

/// A product with a matrix of f32.
pub fn product(k: usize, n: usize) -> Case {
    products::product(firth_quant::Dtype::F32, k, n).steps(&[rows(2)])
}

/// Bounds of `t` rows.
fn rows(t: usize) -> Extents {
    Extents { t, o: 0, p: 0, s: 0 }
}

/// `[n, T]`.
fn wide(n: usize) -> Shape {
    Shape::new([n.into(), Sym::T.into()])
}

/// A shape of any axes.
fn shape(axes: &[Extent]) -> Shape {
    let mut all = [Extent::Const(1); 4];
    all[..axes.len()].copy_from_slice(axes);
    Shape::new(all)
}

/// An f32 input.
fn floats(g: &mut Graph, name: &str, shape: Shape) -> Node {
    g.input(name, Dtype::F32, shape)
}

/// A weight.
fn weight(g: &mut Graph, name: &str, dtype: Dtype, axes: &[usize]) -> Node {
    g.weight(WeightSource::File(name.into()), dtype, Shape::fixed(axes), Part::Head)
}
