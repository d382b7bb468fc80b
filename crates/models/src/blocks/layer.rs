//! A layer while its blocks are made: where its tensors lie, what sizes it has, which states it keeps.

use std::cell::{Cell, RefCell};

use firth_graph::{PageGroup, Part};

use crate::GroupInfo;
use crate::blocks::{Attention, Block, Chain, Glu, Linear, Mlp, Norm, Residual};
use crate::config::Config;
use crate::weights::{Tensor, Weights};

/// Where tensors lie: the prefix of their names, the part they are placed with.
#[derive(Clone)]
pub struct Place<'a> {
    /// The file.
    pub w: &'a Weights<'a>,
    /// The part.
    pub part: Part,
    prefix: String,
    c: &'a Config,
}

impl<'a> Place<'a> {
    /// Tensors named `prefix.…`.
    pub fn new(w: &'a Weights<'a>, c: &'a Config, prefix: impl Into<String>, part: Part) -> Self {
        Place { w, part, prefix: prefix.into(), c }
    }

    /// Tensors that belong to no layer, by their own names.
    pub fn root(w: &'a Weights<'a>, c: &'a Config, part: Part) -> Self {
        Place::new(w, c, "", part)
    }

    /// The full name of a tensor.
    pub fn name(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.into() } else { format!("{}.{name}", self.prefix) }
    }

    /// Whether the file has a tensor, full name with suffix.
    pub fn has(&self, name: &str) -> bool {
        self.w.has(&self.name(name))
    }

    /// A product.
    pub fn linear(&self, name: &str, n_in: usize, n_out: usize) -> Linear {
        Linear::new(self.w, &self.name(name), n_in, n_out, self.part)
    }

    /// The architecture's norm, over rows of `n`.
    pub fn norm(&self, name: &str, n: usize) -> Norm {
        Norm::new(self.w, &self.name(name), &[n], self.c.norm, self.part)
    }

    /// The architecture's norm with weights of each head.
    pub fn head_norm(&self, name: &str, d: usize, heads: usize) -> Norm {
        Norm::new(self.w, &self.name(name), &[d, heads], self.c.norm, self.part)
    }

    /// A matrix or stack of matrices, without suffix.
    pub fn matrix(&self, name: &str, shape: &[usize]) -> Tensor {
        self.w.matrix(&self.name(name), shape, self.part)
    }

    /// Numbers read by element, full name with suffix.
    pub fn table(&self, name: &str, shape: &[usize]) -> Tensor {
        self.w.table(&self.name(name), shape, self.part)
    }
}

/// The states that the layers of a model keep.
#[derive(Default)]
pub struct States {
    groups: RefCell<Vec<GroupInfo>>,
    /// Groups below this belong to others.
    first: usize,
    slots: Cell<bool>,
}

impl States {
    /// Of further layers, whose pages live and die apart from those of `groups`.
    pub fn behind(groups: &[GroupInfo]) -> Self {
        States { groups: RefCell::new(groups.to_vec()), first: groups.len(), ..States::default() }
    }

    /// The page group of layers with this window.
    pub fn group(&self, window: Option<usize>) -> PageGroup {
        let mut groups = self.groups.borrow_mut();
        let at = groups.iter().skip(self.first).position(|g| g.window == window).map(|at| at + self.first);
        let at = at.unwrap_or_else(|| {
            groups.push(GroupInfo { window });
            groups.len() - 1
        });
        PageGroup(at as u32)
    }

    /// Notes that a layer keeps a state in slots.
    pub fn needs_slots(&self) {
        self.slots.set(true);
    }

    /// All page groups, by number.
    pub fn groups(&self) -> Vec<GroupInfo> {
        self.groups.borrow().clone()
    }

    /// The last page group; one without a window where there is none.
    pub fn last(&self) -> GroupInfo {
        self.groups.borrow().last().copied().unwrap_or(GroupInfo { window: None })
    }

    /// Whether any layer keeps a state in slots.
    pub fn slots(&self) -> bool {
        self.slots.get()
    }
}

/// One layer.
pub struct Layer<'a> {
    /// The file.
    pub w: &'a Weights<'a>,
    /// Sizes of the model.
    pub c: &'a Config,
    /// Its number.
    pub i: usize,
    /// Tensors of attention or another mixer.
    pub mixer: Place<'a>,
    /// Tensors of the feed-forward.
    pub ffn: Place<'a>,
    /// Tensors of experts.
    pub experts: Place<'a>,
    /// What the layers keep.
    pub states: &'a States,
}

impl<'a> Layer<'a> {
    /// Layer `i`, its tensors named `blk.i.…`.
    pub fn new(w: &'a Weights<'a>, c: &'a Config, i: usize, states: &'a States) -> Self {
        Layer::named(w, c, "blk", i, states)
    }

    /// Layer `i`, its tensors named `stack.i.…`.
    pub fn named(w: &'a Weights<'a>, c: &'a Config, stack: &str, i: usize, states: &'a States) -> Self {
        let place = |part| Place::new(w, c, format!("{stack}.{i}"), part);
        let n = i as u32;
        let [mixer, ffn, experts] = [Part::Mixer(n), Part::Ffn(n), Part::Experts(n)].map(place);
        Layer { w, c, i, mixer, ffn, experts, states }
    }

    /// Attention by the model's sizes, without norms of heads and without rope.
    pub fn attention(&self) -> Attention {
        Attention::new(self)
    }

    /// `down(act(gate) * up)` of the layer's width.
    pub fn gated_mlp(&self, glu: impl Into<Glu>) -> Mlp {
        Mlp::gated(&self.ffn, "", self.c.width, self.c.hidden[self.i], glu)
    }

    /// `x += mixer(attn_norm(x)); x += ffn(ffn_norm(x))`.
    pub fn pre_norm(&self, mixer: impl Block + 'static, ffn: impl Block + 'static) -> Chain {
        self.pre_norm_named("ffn_norm", mixer, ffn)
    }

    /// As [`Layer::pre_norm`], where the second norm has another name.
    pub fn pre_norm_named(
        &self,
        second: &str,
        mixer: impl Block + 'static,
        ffn: impl Block + 'static,
    ) -> Chain {
        let width = self.c.width;
        Chain::of(
            Residual::pre(self.mixer.norm("attn_norm", width), mixer),
            Residual::pre(self.ffn.norm(second, width), ffn),
        )
    }

    /// `x += post_attention_norm(mixer(attn_norm(x))); x += post_ffw_norm(ffn(ffn_norm(x)))`.
    pub fn sandwich(&self, mixer: impl Block + 'static, ffn: impl Block + 'static) -> Chain {
        let (m, f, width) = (&self.mixer, &self.ffn, self.c.width);
        Chain::of(
            Residual::pre(m.norm("attn_norm", width), mixer).post(m.norm("post_attention_norm", width)),
            Residual::pre(f.norm("ffn_norm", width), ffn).post(f.norm("post_ffw_norm", width)),
        )
    }

    /// `x += post_attention_norm(mixer(x)); x += post_ffw_norm(ffn(x))`.
    pub fn post_norm(&self, mixer: impl Block + 'static, ffn: impl Block + 'static) -> Chain {
        let (m, f, width) = (&self.mixer, &self.ffn, self.c.width);
        Chain::of(
            Residual::plain(mixer).post(m.norm("post_attention_norm", width)),
            Residual::plain(ffn).post(f.norm("post_ffw_norm", width)),
        )
    }
}
