//! Several residual streams beside one another, `[width, streams, T]`.

use firth_graph::{Graph, Node, Shape, op};

/// Every one of `n` streams (or heads) a copy of `x: [width, T]`, read from the same memory.
pub fn spread(g: &mut Graph, x: Node, n: usize) -> Node {
    let l = g.layout(x);
    let axes = l.shape.axes();
    g.view(x, Shape::new([axes[0], n.into(), axes[1]]), [l.strides[0], 0, l.strides[1], l.strides[2]], 0)
}

/// `n` streams to begin with, each a copy of `x: [width, T]`.
pub fn copies(g: &mut Graph, x: Node, n: usize) -> Node {
    let spread = spread(g, x, n);
    g.push(op::Copy, &[spread])
}

/// The sum of the streams, ascending, `[width, T]`.
pub fn total(g: &mut Graph, r: Node) -> Node {
    let l = g.layout(r);
    let axes = l.shape.axes();
    let streams = l.shape.constant(1).unwrap_or(1);
    let one = |g: &mut Graph, i: usize| {
        g.view(
            r,
            Shape::new([axes[0], axes[2]]),
            [l.strides[0], l.strides[2], l.strides[3], l.strides[3]],
            i * l.strides[1],
        )
    };
    let first = one(g, 0);
    (1..streams).fold(first, |sum, i| {
        let next = one(g, i);
        g.push(op::Add, &[sum, next])
    })
}
