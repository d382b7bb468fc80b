//! The programs of a model.

use std::ops::Range;

use firth_graph::{Graph, GraphError, Node, PAGE, Shape, Sym, op, seq_table, slot_table};
use firth_quant::Dtype;

use crate::{BuildOptions, Model, ModelInfo, SamplerBounds, StepNodes, names};

/// Builds the main program of a model: a step from ids to logits and sampled ids where the model has logits, and to rows
/// behind the final norm where the bounds allow any.
///
/// # Errors
/// Operands that do not fit, which a file's sizes can cause.
pub fn build(model: &dyn Model, options: &BuildOptions) -> Result<Graph, GraphError> {
    let info = model.info();
    let mut g = Graph::new(options.bounds);
    let draft = options.draft_head && info.draft.is_some();
    let groups = 0..info.groups.len() + usize::from(draft);
    let step = step_nodes(&mut g, &info, options, groups, info.slots || draft);
    let x = model.forward(&mut g, &step);
    g.scope("head");
    if options.bounds.p > 0 {
        let wanted = g.input(names::EMBED_ROWS, Dtype::I32, Shape::new([Sym::P.into()]));
        let rows = g.push(op::RowSelect, &[x, wanted]);
        let rows = model.normalise(&mut g, rows);
        g.output(names::EMBEDDED, rows);
    }
    if !info.logits {
        return g.finish();
    }
    let out_rows = g.input(names::OUT_ROWS, Dtype::I32, Shape::new([Sym::O.into()]));
    let rows = match model.draft_head().filter(|_| options.draft_head) {
        Some(head) => {
            let normalised = model.normalise(&mut g, x);
            let hidden = head.hidden(x, normalised);
            g.output(names::HIDDEN, hidden);
            let rows = g.push(op::RowSelect, &[normalised, out_rows]);
            g.scope("draft");
            head.catch_up(&mut g, hidden, &step);
            g.scope("head");
            rows
        }
        None => {
            let rows = g.push(op::RowSelect, &[x, out_rows]);
            model.normalise(&mut g, rows)
        }
    };
    let logits = model.logits(&mut g, rows);
    sample(&mut g, &info, &options.sampler, logits);
    g.finish()
}

/// Builds the program of a model's drafting head: a step from ids and the hidden rows before them to logits,
/// sampled ids and the next hidden rows. `None` for a model without such a head.
///
/// # Errors
/// As [`build`].
pub fn build_draft(model: &dyn Model, options: &BuildOptions) -> Result<Option<Graph>, GraphError> {
    let info = model.info();
    let (Some(head), Some(draft)) = (model.draft_head(), info.draft) else { return Ok(None) };
    let mut g = Graph::new(options.bounds);
    let own = info.groups.len()..info.groups.len() + 1;
    let step = step_nodes(&mut g, &info, options, own, false);
    let shape = Shape::new([draft.width.into(), Sym::T.into()]);
    let hidden = g.input(names::HIDDEN, Dtype::F32, shape);
    g.scope("draft");
    let next = head.forward(&mut g, hidden, &step);
    g.output(names::HIDDEN_NEXT, next);
    let out_rows = g.input(names::OUT_ROWS, Dtype::I32, Shape::new([Sym::O.into()]));
    let rows = g.push(op::RowSelect, &[next, out_rows]);
    let logits = head.logits(&mut g, rows);
    sample(&mut g, &info, &options.sampler, logits);
    g.finish().map(Some)
}

/// The inputs that every program has: with the tables of these page groups, with that of slots.
fn step_nodes(
    g: &mut Graph,
    info: &ModelInfo,
    options: &BuildOptions,
    groups: Range<usize>,
    slots: bool,
) -> StepNodes {
    let n_pages = options.ctx.div_ceil(PAGE).max(1);
    let by_seq = |width: usize| Shape::new([width.into(), Sym::S.into()]);
    let mut pages = vec![None; groups.start];
    pages.extend(groups.map(|i| Some(g.input(&names::pages(i), Dtype::I32, by_seq(n_pages)))));
    StepNodes {
        tokens: g.input(names::TOKENS, Dtype::I32, Shape::new([Sym::T.into()])),
        embeds: g.input(names::EMBEDS, Dtype::F32, Shape::new([info.width.into(), Sym::T.into()])),
        positions: g.input(names::POSITIONS, Dtype::I32, Shape::new([Sym::T.into()])),
        seqs: g.input(names::SEQS, Dtype::I32, by_seq(seq_table::WIDTH)),
        slots: slots.then(|| g.input(names::SLOTS, Dtype::I32, by_seq(slot_table::WIDTH))),
        pages,
        options: options.clone(),
    }
}

/// Logits and the sampler's op as outputs.
fn sample(g: &mut Graph, info: &ModelInfo, b: &SamplerBounds, logits: Node) {
    g.output(names::LOGITS, logits);
    let words = firth_sampling::RowParams::WORDS;
    let rows = g.input(names::SAMPLER_ROWS, Dtype::I32, Shape::new([words.into(), Sym::O.into()]));
    let list = |g: &mut Graph, name, width: usize, n: usize| {
        g.input(name, Dtype::I32, Shape::fixed(&[width, n.max(1)]))
    };
    let penalties = list(g, names::SAMPLER_PENALTIES, 2, b.penalties);
    let biases = list(g, names::SAMPLER_BIASES, 2, b.biases);
    let masks = list(g, names::SAMPLER_MASKS, info.n_vocab.div_ceil(32), b.masks);
    g.scope("sample");
    let ids = g.push(op::Sample, &[logits, rows, penalties, biases, masks]);
    g.output(names::SAMPLED, ids);
}
