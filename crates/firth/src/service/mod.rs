//! A model at the service of many: one thread runs its steps, and anyone may ask, listen and go away.

mod cache_dir;
mod stats;
mod stop;
mod tally;
mod work;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use firth_engine::{EmbeddingKind, Event, Finished, Request};
use firth_sampling::{Constraint, Watch};
use tokio::sync::{mpsc as events, oneshot};

use self::cache_dir::CacheDir;
use self::stats::Board;
pub use self::stats::{Counts, SlotStatus};
use self::stop::StopTexts;
pub use self::stop::{Both, PieceOf};
pub use self::tally::CountAllocations;
use self::tally::OfText;
use self::work::{Asked, Command, Work};
use crate::model::Model;
use crate::model_text::ModelText;

/// How a service is run.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// Requests that may wait beside those at work.
    pub queue: usize,
    /// A step that takes longer than this is taken for the end of the engine.
    pub patience: Duration,
    /// A folder that keeps the cache for the next process.
    pub cache_dir: Option<PathBuf>,
    /// What counts allocations; a program knows by its allocator.
    pub allocations: Option<CountAllocations>,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        ServiceOptions { queue: 256, patience: Duration::from_secs(60), cache_dir: None, allocations: None }
    }
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken {
    /// The queue is full.
    #[error(
        "{waiting} requests are waiting or at work, as many as may; try again in about {retry_seconds} s"
    )]
    Busy {
        /// Requests that were taken and have not ended.
        waiting: usize,
        /// When to try again.
        retry_seconds: u64,
    },
    /// The engine has ended.
    #[error("the engine has stopped: {0}")]
    Stopped(String),
}

/// A handle on a model at work; clones are handles on the same one.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    text: ModelText,
    board: Arc<Board>,
    commands: mpsc::Sender<Command>,
    options: ServiceOptions,
    next: AtomicU64,
    parallel: usize,
    ctx: usize,
    embedding: Option<EmbeddingKind>,
    logits: bool,
    fingerprint: u64,
    /// Plans of this process when the model was loaded.
    plans: u64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Service {
    /// Gives a model to a thread of its own.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(mut model: Model, options: ServiceOptions) -> std::io::Result<Service> {
        let (commands, inbox) = mpsc::channel();
        let parallel = model.engine().bounds().s;
        let board = Arc::new(Board::new(parallel));
        let (text, ctx) = (model.text().clone(), model.engine().ctx());
        let fingerprint = model.engine().fingerprint();
        let (embedding, logits) = (model.engine().embedding(), model.engine().info().logits);
        let cache_dir = options.cache_dir.clone().map(|folder| CacheDir::open(folder, &mut model));
        let work = Work::new(model, board.clone(), inbox, cache_dir, options.allocations);
        let thread = std::thread::Builder::new().name("firth engine".into()).spawn(move || work.run())?;
        Ok(Service(Arc::new(Inner {
            text,
            board,
            commands,
            options,
            next: AtomicU64::new(1),
            parallel,
            ctx,
            embedding,
            logits,
            fingerprint,
            plans: firth_graph::plans_made(),
            thread: Mutex::new(Some(thread)),
        })))
    }

    /// The model's text half.
    pub fn text(&self) -> &ModelText {
        &self.0.text
    }

    /// Tokens of a sequence at most.
    pub fn ctx(&self) -> usize {
        self.0.ctx
    }

    /// What the model's embeddings are; `None` where it was loaded without.
    pub fn embedding(&self) -> Option<EmbeddingKind> {
        self.0.embedding
    }

    /// Whether the model goes on from a text: it has logits.
    pub fn has_logits(&self) -> bool {
        self.0.logits
    }

    /// Sequences at once.
    pub fn parallel(&self) -> usize {
        self.0.parallel
    }

    /// Requests that may wait or work at most.
    pub fn capacity(&self) -> usize {
        self.0.parallel + self.0.options.queue
    }

    /// A number of everything that the bits of an answer depend on besides the request.
    pub fn fingerprint(&self) -> u64 {
        self.0.fingerprint
    }

    /// Asks for answers to one prompt that end at any of the texts of `stop`, as `piece` spells tokens: one for each
    /// request. The first goes ahead, and where the cache serves them the others follow from the prompt that it has
    /// computed. They are shown in `slot` where it is given and free, else in any other.
    ///
    /// # Errors
    /// The queue is full, or the engine has stopped. What is wrong with a request itself comes as its first event.
    pub fn submit(
        &self,
        requests: Vec<Request>,
        stop: &[String],
        piece: &PieceOf,
        slot: Option<usize>,
    ) -> Result<Vec<Events>, NotTaken> {
        let inner = &self.0;
        // What was at work when the engine ended keeps its place: a full queue is no reason to come again.
        if let Some(why) = inner.board.death() {
            return Err(NotTaken::Stopped(why));
        }
        let n = requests.len();
        let before = inner.board.taken.fetch_add(n, Relaxed);
        if before + n > self.capacity() {
            inner.board.taken.fetch_sub(n, Relaxed);
            return Err(NotTaken::Busy { waiting: before, retry_seconds: self.retry_seconds(before) });
        }
        let (mut asked, mut streams) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for mut request in requests {
            if let Some(watch) = StopTexts::new(inner.text.shared_vocab(), piece.clone(), stop) {
                let watch: Box<dyn Watch> = Box::new(watch);
                request.watch = Some(match request.watch.take() {
                    Some(other) => Box::new(Both(other, watch)),
                    None => watch,
                });
            }
            if let Some(count) = inner.options.allocations {
                let board = || inner.board.clone();
                let constraint = request.constraint.take().map(|c| OfText::new(c, count, board()));
                request.constraint = constraint.map(|c| Box::new(c) as Box<dyn Constraint>);
                let watch = request.watch.take().map(|w| OfText::new(w, count, board()));
                request.watch = watch.map(|w| Box::new(w) as Box<dyn Watch>);
            }
            let (sender, receiver) = events::unbounded_channel();
            let task = inner.next.fetch_add(1, Relaxed);
            asked.push(Asked { task, request, sender, slot });
            let cancel = Cancel { task, commands: inner.commands.clone() };
            streams.push(Events { receiver, cancel: Some(cancel) });
        }
        match inner.commands.send(Command::Submit(asked)) {
            Ok(()) => Ok(streams),
            Err(_) => {
                inner.board.taken.fetch_sub(n, Relaxed);
                Err(NotTaken::Stopped(self.why_stopped()))
            }
        }
    }

    /// Runs something on the model between two steps.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn call<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Desk) -> R + Send + 'static,
    ) -> Result<R, NotTaken> {
        let (sender, receiver) = oneshot::channel();
        let call = Box::new(move |desk: &mut Desk<'_>| {
            let _ = sender.send(f(desk));
        });
        let stopped = || NotTaken::Stopped(self.why_stopped());
        self.0.commands.send(Command::Call(call)).map_err(|_| stopped())?;
        receiver.await.map_err(|_| stopped())
    }

    /// Plans made in this process since the model was loaded: none, as long as no other is.
    pub fn plan_changes(&self) -> u64 {
        firth_graph::plans_made() - self.0.plans
    }

    /// What is counted.
    pub fn counts(&self) -> &Counts {
        &self.0.board.counts
    }

    /// What each sequence of the engine is doing.
    pub fn slots(&self) -> Vec<SlotStatus> {
        self.0.board.slots()
    }

    /// The sequence that a request is shown as, while it works and until another takes its place.
    pub fn slot_of(&self, task: u64) -> Option<usize> {
        self.0.board.slot_of(task)
    }

    /// Requests that were taken and have not ended.
    pub fn taken(&self) -> usize {
        self.0.board.taken.load(Relaxed)
    }

    /// Whether the engine works: `Err` says what is wrong.
    ///
    /// # Errors
    /// [`NotTaken::Stopped`] where its thread has ended, or its step takes longer than the options allow.
    pub fn health(&self) -> Result<(), NotTaken> {
        if let Some(why) = self.0.board.death() {
            return Err(NotTaken::Stopped(why));
        }
        let silence = self.0.board.silence();
        match silence > self.0.options.patience {
            true => Err(NotTaken::Stopped(format!("its last step began {} s ago", silence.as_secs()))),
            false => Ok(()),
        }
    }

    /// Why the engine has ended, if it has: it will not go on.
    pub fn ended(&self) -> Option<String> {
        self.0.board.death()
    }

    /// Decodes one token, whoever else is at work: whether the engine really works.
    ///
    /// # Errors
    /// The engine has stopped, or what it computes is wrong.
    pub async fn probe(&self) -> Result<(), NotTaken> {
        let decoded = self.call(|desk| desk.model.decode_one()).await?;
        decoded.map_err(|e| NotTaken::Stopped(format!("it cannot decode: {e}")))
    }

    /// Ends the service: what was taken is finished within `grace`, the rest is cut off with an end of its own.
    pub fn stop(&self, grace: Duration) {
        let _ = self.0.commands.send(Command::Stop(Instant::now() + grace));
        let thread = self.0.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    fn why_stopped(&self) -> String {
        self.0.board.death().unwrap_or_else(|| "it was asked to".into())
    }

    /// About how long it takes until a place is free.
    fn retry_seconds(&self, waiting: usize) -> u64 {
        let c = self.counts();
        let micros = c.prompt_micros.load(Relaxed) + c.predicted_micros.load(Relaxed);
        let each = micros as f64 / 1e6 / c.ended.load(Relaxed).max(1) as f64;
        ((each * waiting as f64 / self.0.parallel as f64 / 4.0).ceil() as u64).clamp(1, 60)
    }
}

struct Cancel {
    task: u64,
    commands: mpsc::Sender<Command>,
}

/// What is told of one answer. Dropping it ends the request within a step.
pub struct Events {
    receiver: events::UnboundedReceiver<Event>,
    cancel: Option<Cancel>,
}

impl Events {
    /// The number of the request.
    pub fn task(&self) -> u64 {
        self.cancel.as_ref().map_or(0, |c| c.task)
    }

    /// The next event; `None` behind the last, or where the engine has stopped.
    pub async fn next(&mut self) -> Option<Event> {
        self.receiver.recv().await
    }

    /// As [`next`](Self::next), polled.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.receiver.poll_recv(cx)
    }

    /// As [`next`](Self::next), off any runtime.
    pub fn wait(&mut self) -> Option<Event> {
        self.receiver.blocking_recv()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if let Some(c) = self.cancel.take() {
            let _ = c.commands.send(Command::Cancel(c.task));
        }
    }
}

/// What a [`Service::call`] may touch.
pub struct Desk<'a> {
    /// The model.
    pub model: &'a mut Model,
    /// What each slot holds.
    pub slots: &'a mut [Held],
}

/// The last request of a slot.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// Its cache domain.
    pub domain: u64,
    /// Its tokens, prompt and answer.
    pub ids: Vec<u32>,
    /// Tokens of its prompt.
    pub n_prompt: usize,
}

/// For what has no interest in why: the finish of an event that is the last.
pub(crate) fn finish_of(event: &Event) -> Option<Option<&Finished>> {
    match event {
        Event::Done(f) => Some(Some(f)),
        Event::Failed(_) => Some(None),
        _ => None,
    }
}

pub(crate) const GO_ON: ControlFlow<()> = ControlFlow::Continue(());
