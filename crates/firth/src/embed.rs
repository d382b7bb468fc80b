//! Embeddings of texts, and how well documents answer a query.

use std::ops::ControlFlow;

use firth_engine::{Event, Request};
use firth_text::{Encode, VocabKind};

use crate::error::Error;
use crate::model::Model;
use crate::model_text::ModelText;

/// How an embedding is scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Normalize {
    /// Not at all.
    None,
    /// So that its largest magnitude is 32767, the range of 16-bit integers.
    Max,
    /// To a sum of magnitudes of 1.
    Taxicab,
    /// To a length of 1.
    #[default]
    Euclidean,
    /// To a p-norm of 1.
    P(u32),
}

impl Normalize {
    /// By llama.cpp's number: -1 none, 0 max, 1 taxicab, 2 Euclidean, p from 3.
    pub fn by_number(n: i64) -> Option<Normalize> {
        Some(match n {
            -1 => Normalize::None,
            0 => Normalize::Max,
            1 => Normalize::Taxicab,
            2 => Normalize::Euclidean,
            p => Normalize::P(u32::try_from(p).ok().filter(|p| *p <= 1024)?),
        })
    }

    /// By its name, or its number.
    pub fn by_name(name: &str) -> Option<Normalize> {
        match name {
            "none" => Some(Normalize::None),
            "max" => Some(Normalize::Max),
            "l1" => Some(Normalize::Taxicab),
            "l2" => Some(Normalize::Euclidean),
            number => Normalize::by_number(number.parse().ok()?),
        }
    }

    /// Scales an embedding in place; one of nothing but zeros stays. Sums in f64, ascending.
    pub fn apply(self, x: &mut [f32]) {
        let of = |f: &dyn Fn(f64) -> f64| x.iter().map(|v| f(f64::from(*v).abs())).sum::<f64>();
        let by = match self {
            Normalize::None => return,
            Normalize::Max => x.iter().fold(0.0, |m, v| f64::max(m, f64::from(*v).abs())) / 32767.0,
            Normalize::Taxicab => of(&|v| v),
            Normalize::Euclidean => of(&|v| v * v).sqrt(),
            Normalize::P(p) => of(&|v| v.powf(f64::from(p))).powf(1.0 / f64::from(p)),
        };
        if by > 0.0 {
            x.iter_mut().for_each(|v| *v = (f64::from(*v) / by) as f32);
        }
    }
}

/// The embedding of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedded {
    /// Its numbers: one row, or with [`Pooling::None`](firth_engine::Pooling::None) a row for each token.
    pub numbers: Vec<f32>,
    /// Numbers of a row.
    pub width: usize,
    /// Tokens of the text.
    pub n_tokens: usize,
}

impl Embedded {
    /// Its rows.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.numbers.chunks(self.width.max(1))
    }

    /// Each row cut to its first `dimensions` numbers, then scaled: an embedding of a model that was trained for that is
    /// good at every length.
    pub fn shaped(&self, dimensions: Option<usize>, normalize: Normalize) -> Embedded {
        let width = dimensions.unwrap_or(self.width).min(self.width);
        let mut numbers: Vec<f32> = self.rows().flat_map(|r| &r[..width]).copied().collect();
        numbers.chunks_mut(width.max(1)).for_each(|row| normalize.apply(row));
        Embedded { numbers, width, n_tokens: self.n_tokens }
    }
}

impl Model {
    /// The embeddings of texts, many in a step where they fit; the scores of a classifier with [`Pooling::Rank`](firth_engine::Pooling::Rank). `on` is asked
    /// after every step and may end all.
    ///
    /// # Errors
    /// A text without tokens or longer than the context, a model that was loaded without embeddings; the first of
    /// them ends all. Ended by `on`.
    pub fn embed(
        &mut self,
        texts: Vec<Vec<u32>>,
        on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Vec<Embedded>, Error> {
        let kind = self.engine().embedding().ok_or(firth_engine::EngineError::NoEmbeddings)?;
        let mut out = vec![None; texts.len()];
        let mut jobs = Vec::with_capacity(texts.len());
        let mut failed = None;
        for ids in texts {
            let n_tokens = ids.len();
            match self.scheduler().submit(Request::embedding(ids)) {
                Ok(job) => jobs.push((job, n_tokens)),
                Err(e) => {
                    failed = Some(e.into());
                    break;
                }
            }
        }
        while failed.is_none() && !self.scheduler().is_idle() {
            let ticked = self.scheduler().tick(&mut |job, event| {
                let Some(i) = jobs.iter().position(|(j, _)| *j == job) else {
                    return ControlFlow::Continue(());
                };
                match event {
                    Event::Embedding(numbers) => {
                        let (width, n_tokens) = (kind.width, jobs[i].1);
                        out[i] = Some(Embedded { numbers, width, n_tokens });
                    }
                    Event::Failed(e) => failed = Some(e.into()),
                    _ => {}
                }
                ControlFlow::Continue(())
            });
            if let Err(e) = ticked {
                failed = Some(e.into());
            } else if on().is_break() {
                failed = Some(Error::Argument("interrupted".into()));
            }
        }
        for (job, _) in jobs {
            self.scheduler().cancel(job);
        }
        match failed {
            Some(e) => Err(e),
            None => Ok(out.into_iter().flatten().collect()),
        }
    }
}

impl ModelText {
    /// The tokens of a query and a document that a classifier is to judge: by the file's template for that, else the query
    /// and the document, each ended, with a separator between them where the vocabulary wants one.
    ///
    /// # Errors
    /// A text cannot be encoded.
    pub fn pair_prompt(&self, query: &str, document: &str) -> Result<Vec<u32>, Error> {
        let vocab = self.vocab();
        if let Some(template) = self.file().metadata().str("tokenizer.chat_template.rerank")? {
            // The parts are put in at once, so that neither can name the other's place.
            let text: String = split_keeping(template, ["{query}", "{document}"])
                .map(|part| match part {
                    "{query}" => query,
                    "{document}" => document,
                    text => text,
                })
                .collect();
            return Ok(vocab.encode(&text, Encode { add_special: false, parse_special: true })?);
        }
        let plain = Encode { add_special: false, parse_special: false };
        // WordPiece frames its texts, whatever the file's switches say.
        let framed = vocab.kind() == VocabKind::Wpm;
        let sep = vocab.special_ids().sep;
        let end = vocab.eos().or(sep).filter(|_| vocab.add_eos() && !framed);
        let mut ids: Vec<u32> = vocab.bos().filter(|_| vocab.add_bos() || framed).into_iter().collect();
        ids.extend(vocab.encode(query, plain)?);
        ids.extend(end.into_iter().chain(sep.filter(|_| vocab.add_sep() || framed)));
        ids.extend(vocab.encode(document, plain)?);
        ids.extend(if framed { sep } else { end });
        Ok(ids)
    }
}

/// The parts of a text between two words, and the words themselves.
fn split_keeping<'a>(text: &'a str, words: [&'a str; 2]) -> impl Iterator<Item = &'a str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let next = words.iter().filter_map(|w| rest.find(w).map(|at| (at, w.len()))).min();
        let n = match next {
            None => rest.len(),
            Some((0, n)) => n,
            Some((at, _)) => at,
        };
        let (part, behind) = rest.split_at(n);
        rest = behind;
        Some(part)
    })
}

/// How well a document answers the query, by a classifier's scores: the first of them.
pub fn relevance(scores: &Embedded) -> f32 {
    scores.numbers.first().copied().unwrap_or(f32::NEG_INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_are_scaled() {
        let scaled = |n: Normalize| {
            let mut x = [3.0f32, -4.0, 0.0];
            n.apply(&mut x);
            x
        };
        assert_eq!(scaled(Normalize::Euclidean), [0.6, -0.8, 0.0]);
        assert_eq!(scaled(Normalize::None), [3.0, -4.0, 0.0]);
        assert_eq!(scaled(Normalize::Max), [24575.25, -32767.0, 0.0]);
        assert_eq!(scaled(Normalize::P(2)), scaled(Normalize::Euclidean));
        assert_eq!(scaled(Normalize::Taxicab).map(f32::abs).iter().sum::<f32>(), 1.0);
        let mut zeros = [0.0f32; 3];
        Normalize::Euclidean.apply(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
        let (l2, none) = (Normalize::by_name("l2"), Normalize::by_number(-1));
        assert_eq!((l2, none), (Some(Normalize::Euclidean), Some(Normalize::None)));
        assert_eq!((Normalize::by_name("x"), Normalize::by_number(-2)), (None, None));
    }

    #[test]
    fn rows_are_cut_before_they_are_scaled() {
        let e = Embedded { numbers: vec![3.0, 4.0, 12.0, 0.0, 2.0, 1.0], width: 3, n_tokens: 2 };
        let cut = e.shaped(Some(2), Normalize::Euclidean);
        assert_eq!((cut.width, &cut.numbers[..]), (2, &[0.6, 0.8, 0.0, 1.0][..]));
        assert_eq!(e.shaped(Some(9), Normalize::None), e);
    }

    #[test]
    fn templates_are_cut_at_their_places() {
        let parts: Vec<&str> = split_keeping("a {query}{document} b", ["{query}", "{document}"]).collect();
        assert_eq!(parts, ["a ", "{query}", "{document}", " b"]);
    }
}
