//! Decoders of llama's build that differ in nothing but names, the pairing of rope, and the kind of norm.
//!
//! Layer:  x += attention(norm(x));  x += mlp(norm(x))
//! Source: each checkpoint's own modelling code; GGUF keys by name. Biases count where the file has them, and so do
//! rope's factors, with the exceptions named below.

use firth_graph::{ActKind, RopePairs};

use crate::blocks::{Attention, Decoder, NormKind, Rope};
use crate::config::Config;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;

use NormKind::{Layer, Rms};
use RopePairs::{Adjacent, Half};

/// InternLM 2.
pub const INTERNLM2: Arch = Arch { name: "internlm2", load: |w| model(w, Rms, Adjacent) };
/// XVERSE.
pub const XVERSE: Arch = Arch { name: "xverse", load: |w| model(w, Rms, Adjacent) };
/// EXAONE 3.
pub const EXAONE: Arch = Arch { name: "exaone", load: |w| model(w, Rms, Half) };
/// Qwen 2 and 2.5.
pub const QWEN2: Arch = Arch { name: "qwen2", load: |w| model(w, Rms, Half) };
/// Qwen2-VL's and Qwen2.5-VL's text: the sections of images are one for text. Its `output.bias` plays no part.
pub const QWEN2VL: Arch = Arch { name: "qwen2vl", load: |w| without_head_bias(w, Half) };
/// PaddleOCR-VL's text.
pub const PADDLEOCR: Arch = Arch { name: "paddleocr", load: |w| model(w, Rms, Half) };
/// Orion.
pub const ORION: Arch = Arch { name: "orion", load: |w| model(w, Layer, Half) };
/// openPangu Embedded: factors of rope in its files play no part.
pub const PANGU: Arch = Arch { name: "pangu-embedded", load: |w| rigid(w, |c| Rope::new(c, Half)) };
/// ERNIE 4.5, dense: the bias of the output projection plays no part.
pub const ERNIE: Arch = Arch {
    name: "ernie4_5",
    load: |w| {
        let c = Config::read(w, Rms)?;
        decoder(w, &c, &Rope::new(&c, Adjacent), |a| Attention { out: a.out.unbiased(), ..a }).boxed()
    },
};
/// CogVLM's text: rope without any key of the file.
pub const COGVLM: Arch =
    Arch { name: "cogvlm", load: |w| rigid(w, |c| Rope::new(c, Half).unscaled(10000.0)) };
/// Qwen 1: its key of the feed-forward's width counts gate and up together.
pub const QWEN: Arch = Arch { name: "qwen", load: qwen };

fn model(w: &Weights, norm: NormKind, pairs: RopePairs) -> Loaded {
    let c = Config::read(w, norm)?;
    decoder(w, &c, &Rope::new(&c, pairs).factors(w), |a| a).boxed()
}

/// Without the factors of rope that a file may hold.
fn rigid(w: &Weights, rope: impl Fn(&Config) -> Rope) -> Loaded {
    let c = Config::read(w, Rms)?;
    decoder(w, &c, &rope(&c), |a| a).boxed()
}

fn without_head_bias(w: &Weights, pairs: RopePairs) -> Loaded {
    let c = Config::read(w, Rms)?;
    let mut model = decoder(w, &c, &Rope::new(&c, pairs), |a| a);
    model.head.out = model.head.out.unbiased();
    model.boxed()
}

fn qwen(w: &Weights) -> Loaded {
    let mut c = Config::read(w, Rms)?;
    c.hidden.iter_mut().for_each(|n| *n /= 2);
    decoder(w, &c, &Rope::new(&c, Half), |a| a).boxed()
}

fn decoder(w: &Weights, c: &Config, rope: &Rope, change: impl Fn(Attention) -> Attention) -> Decoder {
    Decoder::new(w, c, |l| l.pre_norm(change(l.attention().rope(rope)), l.gated_mlp(ActKind::Silu)))
}
