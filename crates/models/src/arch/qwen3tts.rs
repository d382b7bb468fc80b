//! Qwen3-TTS's text side: Qwen3 with a head for the last 3072 ids, those of sound.
//!
//! Layer:  that of Qwen3; every other id has a logit of -infinity.
//! Source: GGUF keys `qwen3tts.*`.

use firth_graph::{Graph, Node, Part, Shape, WeightSource, op};
use firth_quant::Dtype;

use super::qwen3;
use crate::blocks::{Decoder, Embedding, Head, Linear, NormKind};
use crate::config::Config;
use crate::error::ModelError;
use crate::registry::{Arch, Loaded};
use crate::weights::Weights;
use crate::{Model, ModelInfo, StepNodes};

/// Registry entry.
pub const ARCH: Arch = Arch { name: "qwen3tts", load };

/// Ids of sound.
const SOUNDS: usize = 3072;

fn load(w: &Weights) -> Loaded {
    let c = Config::read(w, NormKind::Rms)?;
    let Some(silent) = c.n_vocab.checked_sub(SOUNDS) else {
        let expected = format!("at least {SOUNDS}");
        return Err(ModelError::value("rows of token_embd.weight", c.n_vocab, expected));
    };
    let embed = Embedding::new(w, &c);
    let out = Linear::new(w, "output", c.width, SOUNDS, Part::Head);
    let head = Head { out, ..Head::new(w, &Config { n_vocab: SOUNDS, ..c.clone() }, &embed) };
    Ok(Box::new(Tts { decoder: qwen3::decoder(w, &c, embed, head), silent }))
}

struct Tts {
    decoder: Decoder,
    /// Ids without a row in the head.
    silent: usize,
}

impl Model for Tts {
    fn info(&self) -> ModelInfo {
        self.decoder.info()
    }

    fn forward(&self, g: &mut Graph, step: &StepNodes) -> Node {
        self.decoder.forward(g, step)
    }

    fn normalise(&self, g: &mut Graph, hidden: Node) -> Node {
        self.decoder.normalise(g, hidden)
    }

    fn logits(&self, g: &mut Graph, rows: Node) -> Node {
        let logits = self.decoder.logits(g, rows);
        if self.silent == 0 {
            return logits;
        }
        let values = vec![f32::NEG_INFINITY; self.silent];
        let source = WeightSource::Values { name: "silent ids".into(), values };
        let silent = g.weight(source, Dtype::F32, Shape::fixed(&[self.silent]), Part::Head);
        let (unit, axes) = (g.layout(silent).strides[0], g.layout(logits).shape.axes());
        let rows = g.view(silent, Shape::new([self.silent.into(), axes[1]]), [unit, 0, 0, 0], 0);
        g.push(op::Concat, &[rows, logits])
    }
}
