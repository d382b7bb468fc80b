//! Where fusion fires, and where it must not.

use firth_conformance::harness::{Case, check, cpu, load, run, same};
use firth_cpu::Level;
use firth_graph::op::*;
use firth_graph::*;
use firth_quant::Dtype;

const BOUNDS: Extents = Extents { t: 7, o: 0, p: 0, s: 0 };

/// How often each rule fires on the graph; the fused graph must give the same bits.
fn fired(name: &str, build: impl FnOnce(&mut Graph)) -> Vec<(&'static str, usize)> {
    let mut case = Case::new(name, BOUNDS, build);
    check(&case).expect("the plain graph runs");
    let bits = |case: &Case, level| {
        let device = cpu("cpu", level, 2, Vec::new());
        let mut r = load(&case.graph, &case.weights(), 1, vec![device], &Policy::FIRST).expect("it loads");
        run(case, &mut r, 0).expect("it runs")
    };
    let expected = bits(&case, Level::Scalar);
    let device = cpu("cpu", Level::Scalar, 1, Vec::new());
    let (g, report) = fuse(&case.graph, &|op, types| device.supports(op, types));
    case.graph = g.finish().expect("a fused graph is a graph");
    for level in Level::available() {
        assert!(same(&case, &bits(&case, level), &expected), "{name}: fused at {level}");
    }
    report.fired
}

fn x(g: &mut Graph, name: &str) -> Node {
    g.input(name, Dtype::F32, Shape::new([33.into(), Sym::T.into()]))
}

fn w(g: &mut Graph, name: &str) -> Node {
    g.weight(WeightSource::File(name.into()), Dtype::F32, Shape::fixed(&[33]), Part::Head)
}

const NORM: RmsNorm = RmsNorm { eps: 1e-5 };

#[test]
fn a_norm_and_its_weight() {
    let found = fired("norm and weight", |g| {
        let (x, w) = (x(g, "x"), w(g, "w"));
        let n = g.push(NORM, &[x]);
        let y = g.push(Mul, &[n, w]);
        g.output("y", y);
    });
    assert_eq!(found, [("rms_norm_mul", 1)]);
}

#[test]
fn not_where_the_norm_has_two_uses() {
    let found = fired("two uses", |g| {
        let (x, w) = (x(g, "x"), w(g, "w"));
        let n = g.push(NORM, &[x]);
        let y = g.push(Mul, &[n, w]);
        let z = g.push(Add, &[n, y]);
        g.output("z", z);
    });
    assert_eq!(found, []);
}

#[test]
fn not_where_the_norm_is_an_output_or_seen_through_a_view() {
    let found = fired("norm as output", |g| {
        let (x, w) = (x(g, "x"), w(g, "w"));
        let n = g.push(NORM, &[x]);
        let y = g.push(Mul, &[n, w]);
        g.output("n", n);
        g.output("y", y);
    });
    assert_eq!(found, []);
    let found = fired("norm through a view", |g| {
        let (x, w) = (x(g, "x"), w(g, "w"));
        let n = g.push(NORM, &[x]);
        let part = g.slice(n, 3, 20);
        let y = g.push(Mul, &[n, w]);
        g.output("part", part);
        g.output("y", y);
    });
    assert_eq!(found, []);
}

#[test]
fn not_with_a_factor_that_is_no_weight() {
    let found = fired("no weight", |g| {
        let (x, b) = (x(g, "x"), x(g, "b"));
        let n = g.push(NORM, &[x]);
        let y = g.push(Mul, &[n, b]);
        g.output("y", y);
    });
    assert_eq!(found, []);
}

#[test]
fn a_residual_sum_and_its_norm() {
    let found = fired("sum and norm", |g| {
        let (mut h, w1, w2) = (x(g, "x"), w(g, "w1"), w(g, "w2"));
        for (name, w) in [("a", w1), ("b", w2)] {
            let a = x(g, name);
            h = g.push(Add, &[h, a]);
            let n = g.push(NORM, &[h]);
            let n = g.push(Mul, &[n, w]);
            let n = g.push(Act { kind: ActKind::Silu }, &[n]);
            h = g.push(Add, &[h, n]);
        }
        g.output("h", h);
    });
    assert_eq!(found, [("rms_norm_mul", 2), ("add_rms_norm_mul", 2)]);
}

#[test]
fn not_where_the_sum_broadcasts_or_the_device_has_no_kernel() {
    let found = fired("broadcast sum", |g| {
        let (x, b, w) = (x(g, "x"), w(g, "b"), w(g, "w"));
        let sum = g.push(Add, &[x, b]);
        let n = g.push(NORM, &[sum]);
        let y = g.push(Mul, &[n, w]);
        g.output("y", y);
    });
    assert_eq!(found, [("rms_norm_mul", 1)]);
    let mut g = Graph::new(BOUNDS);
    let (x, w) = (x(&mut g, "x"), w(&mut g, "w"));
    let n = g.push(NORM, &[x]);
    let y = g.push(Mul, &[n, w]);
    g.output("y", y);
    assert_eq!(fuse(&g, &|_, _| false).1, FusionReport::default());
}

/// Fused ops are what they expand to, bit for bit.
#[test]
fn fused_ops_equal_their_expansion() {
    let ops: [(Op, usize); 2] =
        [(RmsNormMul { eps: 1e-5 }.into(), 2), (AddRmsNormMul { eps: 1e-5 }.into(), 3)];
    for (op, n) in ops {
        let build = |g: &mut Graph, expanded: bool| {
            let mut inputs: Vec<Node> = ["a", "b"][..n - 1].iter().map(|name| x(g, name)).collect();
            inputs.push(w(g, "w"));
            let results = match expanded {
                true => op.expand(g, &inputs).expect("a fused op has an expansion"),
                false => g.push_n(op.clone(), &inputs)[2 - (n - 1)..].to_vec(),
            };
            for (i, y) in results.iter().enumerate() {
                g.output(&format!("y{i}"), *y);
            }
        };
        let [fused, plain] =
            [false, true].map(|expanded| Case::new(op.name(), BOUNDS, |g| build(g, expanded)));
        for level in Level::available() {
            let bits = |case: &Case| {
                let device = cpu("cpu", level, 1, Vec::new());
                let mut r =
                    load(&case.graph, &case.weights(), 1, vec![device], &Policy::FIRST).expect("it loads");
                run(case, &mut r, 0).expect("it runs")
            };
            assert!(same(&fused, &bits(&fused), &bits(&plain)), "{} at {level}", op.name());
        }
    }
}
