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
    let streams = g.layout(r).shape.constant(1).unwrap_or(1);
    let first = one(g, r, 0);
    (1..streams).fold(first, |sum, i| {
        let next = one(g, r, i);
        g.push(op::Add, &[sum, next])
    })
}

/// Stream `i`, `[width, T]`.
pub fn one(g: &mut Graph, r: Node, i: usize) -> Node {
    let l = g.layout(r);
    let axes = l.shape.axes();
    let strides = [l.strides[0], l.strides[2], l.strides[3], l.strides[3]];
    g.view(r, Shape::new([axes[0], axes[2]]), strides, i * l.strides[1])
}

/// The streams from `first` on.
pub fn behind(g: &mut Graph, r: Node, first: usize) -> Node {
    let l = g.layout(r);
    let axes = l.shape.axes();
    let rest = l.shape.constant(1).unwrap_or(1).saturating_sub(first);
    g.view(r, Shape::new([axes[0], rest.into(), axes[2]]), l.strides, first * l.strides[1])
}

/// A number of each stream `[streams, T]` as `[1, streams, T]`.
pub fn by_stream(g: &mut Graph, x: Node) -> Node {
    let l = g.layout(x);
    let axes = l.shape.axes();
    g.view(
        x,
        Shape::new([1.into(), axes[0], axes[1]]),
        [l.strides[0], l.strides[0], l.strides[1], l.strides[2]],
        0,
    )
}

/// A first stream `[width, T]` before others `[width, streams - 1, T]`.
pub fn join(g: &mut Graph, first: Node, others: Node) -> Node {
    let n = g.layout(first).shape.constant(0).unwrap_or(1);
    let others = g.merge_heads(others);
    let all = g.push(op::Concat, &[first, others]);
    g.split_heads(all, n)
}
