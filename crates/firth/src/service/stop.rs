//! Stop texts, watched for while the engine works.

use std::sync::Arc;

use firth_sampling::{Verdict, Watch};
use firth_text::{TextStream, Vocab};

/// The bytes that a token adds to the text which is watched.
pub type PieceOf = Arc<dyn for<'v> Fn(&'v Vocab, u32) -> &'v [u8] + Send + Sync>;

/// Ends a generation with the token that completes a stop text.
pub(crate) struct StopTexts {
    vocab: Arc<Vocab>,
    piece: PieceOf,
    stream: TextStream,
    /// What has come of the stream; only its end is of interest.
    text: String,
}

impl StopTexts {
    /// `None` where there is nothing to watch for.
    pub fn new(vocab: Arc<Vocab>, piece: PieceOf, stops: &[String]) -> Option<StopTexts> {
        let any = stops.iter().any(|s| !s.is_empty());
        any.then(|| StopTexts { vocab, piece, stream: TextStream::new(stops.to_vec()), text: String::new() })
    }
}

/// Two that watch: the first to end it does.
pub struct Both(pub Box<dyn Watch>, pub Box<dyn Watch>);

impl Watch for Both {
    fn push(&mut self, ids: &[u32]) -> Verdict {
        match (self.0.push(ids), self.1.push(ids)) {
            (Verdict::StopAfter(a), Verdict::StopAfter(b)) => Verdict::StopAfter(a.min(b)),
            (Verdict::Continue, other) | (other, Verdict::Continue) => other,
        }
    }
}

impl Watch for StopTexts {
    fn push(&mut self, ids: &[u32]) -> Verdict {
        for (i, id) in ids.iter().enumerate() {
            self.text.clear();
            self.stream.push_into((self.piece)(&self.vocab, *id), &mut self.text);
            if self.stream.stopped().is_some() {
                return Verdict::StopAfter(i + 1);
            }
        }
        Verdict::Continue
    }
}
