//! Pages of a state: copied, read and written back, they are what they were.

use std::ops::ControlFlow;
use std::sync::Arc;

use firth_conformance::cases::attention::Layer;
use firth_conformance::cases::tables;
use firth_conformance::data::Rng;
use firth_conformance::harness::{cpu, step};
use firth_cpu::Level;
use firth_graph::*;
use firth_quant::Dtype;

const BOUNDS: Extents = Extents { t: 100, s: 1, o: 0, p: 0 };

/// Inputs of `n` rows from index `first`, over `pages`.
fn inputs(g: &Graph, x: Extents, first: usize, pages: &[i32]) -> Vec<Array> {
    let one = |d: &InputDecl| {
        let dims = d.layout.shape.dims(&x);
        let ints = |i: Vec<i32>| Array { dims, f: Vec::new(), i };
        match d.name.as_str() {
            "seqs" => ints(vec![0, x.t as i32, first as i32, x.t as i32]),
            "pages" => ints(pages.to_vec()),
            name => Array {
                dims,
                f: Rng::new(&format!("{name} {first}")).values(dims.iter().product()),
                i: Vec::new(),
            },
        }
    };
    g.inputs.iter().map(one).collect()
}

#[test]
fn copied_and_restored_pages_are_read_as_the_old_ones() {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Q8_0] {
        let mut g = Graph::new(BOUNDS);
        Layer { dtype, ..Layer::plain("pages") }.build(&mut g);
        let g = g.finish().expect("a legal graph");
        let device: Arc<dyn Device> = cpu("cpu", Level::detect(), 2, Vec::new());
        let plan = Plan::new(&g, &[&*device], &Policy::FIRST).expect("it is planned");
        let mut resources = Resources::new(vec![device.clone()]);
        let mut open = |_: &WeightDecl| -> Result<Box<dyn WeightBytes>, LoadError> { panic!("no weights") };
        let n = tables::N_PAGES;
        resources.load(&g, &plan, &mut open, &|_| n, &mut |_| ControlFlow::Continue(())).expect("it loads");
        let (_, state) = resources.state("kv").expect("the state is there");
        let mut runner = Runner::new(&g, plan, &resources).expect("it compiles");

        let all = BOUNDS;
        let mut at = |x, first, pages: &[i32]| {
            step(&mut runner, &g, &inputs(&g, x, first, pages), x).expect("it runs")
        };
        at(all, 0, &[3, 7, 1, -1, -1]);
        let one = Extents { t: 1, ..all };
        let expected = at(one, 100, &[3, 7, 1, -1, -1]);

        // Page 3 is copied to 12, page 7 is read and written to 9.
        device.copy_page(state, 3, 12, PAGE).expect("a page is copied");
        let mut bytes = vec![0; g.states[0].spec.page_bytes()];
        device.read_page(state, 7, &mut bytes).expect("a page is read");
        device.write_page(state, 9, &bytes).expect("a page is written");
        assert!(at(one, 100, &[12, 9, 1, -1, -1]) == expected, "{dtype:?}: other pages, other bits");
        // Written pages are not shared: a new token in the copy leaves the old one alone.
        let other = Extents { t: 30, ..all };
        at(other, 70, &[12, 9, 1, -1, -1]);
        assert!(at(one, 100, &[3, 7, 1, -1, -1]) == expected, "{dtype:?}: the old pages changed");
    }
}
