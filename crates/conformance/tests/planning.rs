//! What the planner promises: placement without kernels, refusals that say what is missing, states.

use firth_conformance::harness::cpu;
use firth_conformance::random;
use firth_cpu::Level;
use firth_graph::op::{Act, Attend, KvWrite, MatMul, Mul, RmsNorm};
use firth_graph::*;
use firth_quant::Dtype;

fn best() -> Level {
    Level::available().last().expect("a level")
}

/// What a plan says about placement, without the layouts that a device may or may not read.
fn placement(p: &Plan) -> impl PartialEq + std::fmt::Debug {
    let segments: Vec<(usize, usize)> = p
        .segments
        .iter()
        .map(|s| (s.device, s.ops.iter().filter(|o| o.op.name() != "copy").count()))
        .collect();
    (
        p.weight_device.clone(),
        p.state_device.clone(),
        segments,
        p.host.iter().map(|h| h.of.clone()).collect::<Vec<_>>(),
    )
}

#[test]
fn the_null_device_places_as_the_cpu_does() {
    let (cpu_a, cpu_b) = (cpu("a", best(), 1, vec!["act"]), cpu("b", best(), 1, vec!["rope"]));
    let (null_a, null_b) = (NullDevice::new("a", vec!["act"]), NullDevice::new("b", vec!["rope"]));
    let mut split = 0;
    for seed in 0..200 {
        let case = random::case(seed);
        let prefer = |p: Part| usize::from(matches!(p, Part::Mixer(_) | Part::Head));
        let policy = Policy { prefer: &prefer, allow_transfers: true };
        let on_cpu =
            Plan::new(&case.graph, &[&*cpu_a, &*cpu_b], &policy).expect("between them they have all kernels");
        let on_null = Plan::new(&case.graph, &[&null_a, &null_b], &policy).expect("null devices take all");
        assert_eq!(placement(&on_cpu), placement(&on_null), "graph {seed}");
        split += usize::from(on_cpu.segments.len() > 1);
    }
    assert!(split > 100, "only {split} of 200 plans have more than one segment");
}

fn small(op: impl Into<Op>) -> Graph {
    let mut g = Graph::new(Extents { t: 4, ..Extents::default() });
    g.scope("blk.7.ffn");
    let x = g.input("x", Dtype::F32, Shape::new([24.into(), Sym::T.into()]));
    let y = g.push(op, &[x]);
    g.output("y", y);
    g.finish().expect("a legal graph")
}

#[test]
fn a_missing_kernel_is_named_with_operands_and_device() {
    let device = cpu("cpu:3", best(), 1, vec!["act"]);
    let e =
        Plan::new(&small(Act { kind: ActKind::Silu }), &[&*device], &Policy::FIRST).expect_err("no kernel");
    assert_eq!(e.to_string(), "blk.7.ffn: no kernel for `act` with operands F32 [24, T] on cpu:3");
    let null = NullDevice::new("null", vec!["rms_norm"]);
    let policy = Policy { allow_transfers: true, ..Policy::FIRST };
    let e =
        Plan::new(&small(RmsNorm { eps: 0.0 }), &[&null, &*device], &policy).map(|p| p.segments[0].device);
    assert_eq!(e, Ok(1), "the other device runs it");
    let e = Plan::new(
        &small(Act { kind: ActKind::Silu }),
        &[&*device, &NullDevice::new("null", vec!["act"])],
        &policy,
    );
    assert_eq!(
        e.expect_err("no kernel").to_string(),
        "blk.7.ffn: no kernel for `act` with operands F32 [24, T] on cpu:3, null"
    );
}

#[test]
fn products_take_weights_as_declared() {
    let check = |make: fn(&mut Graph, Node) -> Node| {
        let mut g = Graph::new(Extents { t: 4, ..Extents::default() });
        let x = g.input("x", Dtype::F32, Shape::new([24.into(), Sym::T.into()]));
        let w = g.weight(WeightSource::File("w".into()), Dtype::F32, Shape::fixed(&[24, 8]), Part::Ffn(0));
        let w = make(&mut g, w);
        let y = g.push(MatMul, &[w, x]);
        g.output("y", y);
        g.finish().map(|_| ())
    };
    assert_eq!(check(|_, w| w), Ok(()));
    // The first rows alone: legal as a view, but a device keeps the weight in a layout of its own.
    assert!(matches!(
        check(|g, w| g.view(w, Shape::fixed(&[24, 4]), [4, 96, 384, 384], 0)),
        Err(GraphError::Shape { .. })
    ));
    assert!(matches!(check(|g, w| g.push(Mul, &[w, w])), Err(GraphError::Shape { .. })));
}

#[test]
fn heads_that_do_not_follow_each_other_cannot_be_merged() {
    let mut g = Graph::new(Extents { t: 4, ..Extents::default() });
    let x = g.input("x", Dtype::F32, Shape::new([24.into(), Sym::T.into()]));
    let x = g.split_heads(x, 8);
    let x = g.slice(x, 0, 4);
    g.merge_heads(x);
    assert!(matches!(g.finish(), Err(GraphError::Shape { op: "merge_heads", .. })));
}

/// Writes and reads of one state in the order given: `w` writes, `o` reads the version before, `n` the one after.
fn on_a_state(order: &str) -> Result<(), GraphError> {
    let mut g = Graph::new(Extents { t: 4, s: 1, ..Extents::default() });
    let row = Shape::new([32.into(), 1.into(), Sym::T.into()]);
    let x = g.input("x", Dtype::F32, row);
    let seqs = g.input("seqs", Dtype::I32, Shape::new([4.into(), Sym::S.into()]));
    let pages = g.input("pages", Dtype::I32, Shape::new([1.into(), Sym::S.into()]));
    let spec = KvSpec {
        key_dim: 32,
        value_dim: 32,
        n_heads: 1,
        dtype: Dtype::F32,
        group: PageGroup(0),
        window: None,
        value_in_key: false,
    };
    let old = g.state("kv", StateSpec::Kv(spec), Part::Mixer(0));
    let attend = Attend::new(1.0);
    let mut new = old;
    for c in order.chars() {
        match c {
            'w' => new = g.push(KvWrite, &[old, x, x, seqs, pages]),
            'v' => new = g.push(KvWrite, &[new, x, x, seqs, pages]),
            'o' => _ = g.push(attend, &[old, x, seqs, pages]),
            _ => _ = g.push(attend, &[new, x, seqs, pages]),
        }
    }
    g.finish().map(|_| ())
}

#[test]
fn a_state_has_one_writer_and_no_late_reader() {
    assert_eq!(on_a_state("wn"), Ok(()));
    assert_eq!(on_a_state("ownn"), Ok(()));
    for order in ["ww", "wv", "wnv"] {
        assert!(
            matches!(on_a_state(order), Err(GraphError::TwoWriters { .. })),
            "{order}: {:?}",
            on_a_state(order)
        );
    }
    for order in ["wo", "wno"] {
        assert!(
            matches!(on_a_state(order), Err(GraphError::LateRead { .. })),
            "{order}: {:?}",
            on_a_state(order)
        );
    }
}

#[test]
fn memory_is_refused_by_what_needs_it() {
    let options = firth_cpu::CpuOptions {
        threads: 1,
        level: best(),
        without: Vec::new(),
        max_bytes: Some(1000),
        map: false,
        name: "small".into(),
    };
    let device: std::sync::Arc<dyn Device> = std::sync::Arc::new(firth_cpu::CpuDevice::new(options));
    let mut g = Graph::new(Extents { t: 4, ..Extents::default() });
    let x = g.input("x", Dtype::F32, Shape::new([64.into(), Sym::T.into()]));
    let w = g.weight(WeightSource::File("w".into()), Dtype::F32, Shape::fixed(&[64, 64]), Part::Ffn(0));
    let y = g.push(MatMul, &[w, x]);
    g.output("y", y);
    let loaded =
        firth_conformance::harness::load(&g, &[vec![0; 64 * 64 * 4]], 1, vec![device], &Policy::FIRST);
    assert!(
        matches!(&loaded, Err(LoadError::OutOfMemory { what, device, free: 1000, .. }) if what == "w" && device == "small")
    );
}
