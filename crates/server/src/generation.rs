//! One request in the server's own terms, and its answers as they come. Every dialect is translated to and from this.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Instant;

use firth::text::TextStream;
use firth::text::output::{Output, OutputEvent, OutputFormat, OutputParser, ThoughtBudget, Tool};
use firth::{
    Both, Constraint, Event, Events, GenerateOptions, Logprobs, PieceOf, Prompt, Request, StopReason,
    Timings, Watch,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Sampling;
use crate::limits::{LineWatch, Lines};
use crate::record::Record;
use crate::structured::Rule;

/// What to generate.
pub struct Generation {
    /// The prompt.
    pub ids: Vec<u32>,
    /// How to sample.
    pub sampling: Sampling,
    /// Logarithms of probabilities, with so many of the likeliest.
    pub logprobs: Option<usize>,
    /// Those of the prompt, too.
    pub prompt_logprobs: bool,
    /// The cache domain of whoever asks.
    pub domain: u64,
    /// What may be said.
    pub rule: Option<Rule>,
    /// How the answer is read; text and nothing else when `None`.
    pub reading: Option<Reading>,
    /// The number of the first answer: part of its random numbers.
    pub first_choice: u32,
}

impl Generation {
    /// Text that goes on, for nobody in particular.
    pub fn new(ids: Vec<u32>, sampling: Sampling) -> Generation {
        let (logprobs, prompt_logprobs) = (None, false);
        let (domain, rule, reading, first_choice) = (0, None, None, 0);
        Generation { ids, sampling, logprobs, prompt_logprobs, domain, rule, reading, first_choice }
    }
}

/// How an answer is split into thoughts, text and calls.
#[derive(Clone)]
pub struct Reading {
    /// The model's way to write them.
    pub format: OutputFormat,
    /// The end of the prompt's text, where thoughts may have been opened.
    pub tail: String,
    /// Tools that may be called.
    pub tools: Vec<Tool>,
}

/// Something of an answer.
pub enum Piece {
    /// So many tokens of the prompt are done.
    Progress(usize),
    /// What is said next.
    Delta(Delta),
    /// The end.
    End(End),
}

/// Text that is certain, and the tokens that it came of.
#[derive(Default)]
pub struct Delta {
    /// Its parts.
    pub events: Vec<OutputEvent>,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// What the model thought of them.
    pub logprobs: Vec<Logprobs>,
}

impl Delta {
    /// Its text, thoughts and all.
    pub fn text(&self) -> String {
        let text = |e: &OutputEvent| match e {
            OutputEvent::Content(t) | OutputEvent::Reasoning(t) => t.clone(),
            _ => String::new(),
        };
        self.events.iter().map(text).collect()
    }
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub struct End {
    /// Why.
    pub stop: StopReason,
    /// The stop text that was found.
    pub word: Option<String>,
    /// Counts and times.
    pub timings: Timings,
    /// Whether tools were called.
    pub has_calls: bool,
    /// The slot that it is shown in.
    pub slot: usize,
}

/// A whole answer.
pub struct Whole {
    /// Thoughts, text and calls.
    pub output: Output,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// What the model thought of them.
    pub logprobs: Vec<Logprobs>,
    /// What it thought of the prompt's tokens behind the first.
    pub prompt_logprobs: Vec<Logprobs>,
    /// How it ended.
    pub end: End,
}

/// One answer as it comes.
pub struct Choice {
    app: Arc<App>,
    events: Events,
    piece: PieceOf,
    stops: Vec<String>,
    stream: TextStream,
    /// White space that lines begin with, the lines so far, and the bytes of text that came of them.
    indent: usize,
    lines: Lines,
    n_bytes: usize,
    /// The beginning of a line that may come to nothing; and whether one has.
    held: String,
    is_cut: bool,
    /// Set where a limit on lines has ended the answer.
    cut: Arc<AtomicBool>,
    parser: Option<OutputParser>,
    next: Delta,
    first: Option<Event>,
    /// What was ready behind what was just given.
    end: Option<End>,
    over: bool,
    taken_up: bool,
    has_calls: bool,
    last_token: Option<Instant>,
    started: Instant,
    /// Prompt tokens.
    pub n_prompt: usize,
    /// Those from the cache; known with the first event.
    pub n_cached: usize,
    /// Tokens said.
    pub n_said: usize,
    /// What the model thought of the prompt.
    pub prompt_logprobs: Vec<Logprobs>,
    record: Option<Box<Record>>,
}

impl App {
    /// Sets a generation to work, `sampling.n` answers to it. Returns when the engine has taken up the first.
    ///
    /// # Errors
    /// The prompt is too long, the queue is full, or the engine refuses.
    pub async fn start(self: &Arc<App>, g: Generation) -> Result<Vec<Choice>, ApiError> {
        let text = self.service.text();
        let n_prompt = g.ids.len();
        if n_prompt == 0 {
            return Err(ApiError::field("prompt", "the prompt has no tokens"));
        }
        if n_prompt >= self.service.ctx() {
            return Err(ApiError::context(n_prompt, self.service.ctx()));
        }
        let options = GenerateOptions {
            params: Some(g.sampling.params.clone()),
            max_tokens: g.sampling.max_tokens,
            stop: Vec::new(),
            ignore_eos: g.sampling.ignore_eos,
            ..GenerateOptions::default()
        };
        let limits = g.sampling.lines;
        let mut rules = match g.rule.clone() {
            Some(rule) => rule.constraints(text.clone(), g.sampling.n).await?,
            None => Vec::new(),
        };
        let mut requests: Vec<Request> = Vec::with_capacity(g.sampling.n);
        for choice in 0..g.sampling.n {
            let mut r = text.request(Prompt { ids: g.ids.clone() }, &options)?;
            (r.choice, r.domain, r.cache) = (g.first_choice + choice as u32, g.domain, g.sampling.cache);
            (r.logprobs, r.prompt_logprobs) = (g.logprobs, g.prompt_logprobs && choice == 0);
            if let Some((constraint, watch)) = rules.pop() {
                r.constraint = Some(constraint);
                r.watch = Some(Box::new(watch));
            }
            r.constraint = self.budgeted(&g, r.constraint.take());
            requests.push(r);
        }
        let piece: PieceOf = match &g.reading {
            Some(r) => {
                let format = r.format;
                Arc::new(move |vocab, id| format.piece(vocab, id))
            }
            None => Arc::new(|vocab, id| vocab.piece(id, false)),
        };
        let stops: Vec<String> = g.sampling.stop.iter().filter(|s| !s.is_empty()).cloned().collect();
        let seed = g.sampling.params.seed;
        let cuts: Vec<Arc<AtomicBool>> = requests.iter().map(|_| Arc::default()).collect();
        if limits.any() {
            for (r, cut) in requests.iter_mut().zip(&cuts) {
                let watch = LineWatch::new(text.shared_vocab(), piece.clone(), limits, cut.clone());
                r.watch = Some(both(r.watch.take(), Box::new(watch)));
            }
        }
        let events = self.service.submit(requests, &stops, &piece, g.sampling.slot)?;
        let choice = |(i, events): (usize, Events)| Choice {
            app: self.clone(),
            events,
            piece: piece.clone(),
            stops: stops.clone(),
            stream: TextStream::new(stops.clone()),
            indent: limits.indent,
            lines: Lines::default(),
            n_bytes: 0,
            held: String::new(),
            is_cut: false,
            cut: cuts[i].clone(),
            parser: g
                .reading
                .as_ref()
                .map(|r| OutputParser::new(r.format, &r.tail, r.tools.clone(), seed.wrapping_add(i as u64))),
            next: Delta::default(),
            first: None,
            end: None,
            over: false,
            taken_up: false,
            has_calls: false,
            last_token: None,
            started: Instant::now(),
            n_prompt,
            n_cached: 0,
            n_said: 0,
            prompt_logprobs: Vec::new(),
            record: self
                .options
                .record
                .as_ref()
                .map(|_| Box::new(Record::new(self, &g, g.first_choice + i as u32))),
        };
        let mut choices: Vec<Choice> = events.into_iter().enumerate().map(choice).collect();
        choices[0].wait_for_first().await?;
        Ok(choices)
    }

    /// Sets several generations to work at once, so that all are queued before the first is waited for; their answers
    /// in order.
    ///
    /// # Errors
    /// As [`start`](Self::start), for any of them.
    pub async fn start_all(self: &Arc<App>, all: Vec<Generation>) -> Result<Vec<Choice>, ApiError> {
        // A client that goes away drops the set, and with it what is still queued.
        let mut tasks = JoinSet::new();
        for (i, g) in all.into_iter().enumerate() {
            let app = self.clone();
            tasks.spawn(async move { (i, app.start(g).await) });
        }
        let mut started = Vec::with_capacity(tasks.len());
        while let Some(task) = tasks.join_next().await {
            let (i, choices) = task.map_err(|e| ApiError::server(e.to_string()))?;
            started.push((i, choices?));
        }
        started.sort_by_key(|(i, _)| *i);
        let choices = started.into_iter().flat_map(|(_, choices)| choices).collect();
        Ok(choices)
    }
}

/// Two watches in one.
fn both(one: Option<Box<dyn Watch>>, other: Box<dyn Watch>) -> Box<dyn Watch> {
    match one {
        Some(one) => Box::new(Both(one, other)),
        None => other,
    }
}

impl App {
    /// The constraint of an answer whose thoughts have a limit, around another one if any.
    fn budgeted(&self, g: &Generation, inner: Option<Box<dyn Constraint>>) -> Option<Box<dyn Constraint>> {
        let (Some(limit), Some(r)) = (&g.sampling.budget, &g.reading) else { return inner };
        let vocab = self.service.text().shared_vocab();
        match ThoughtBudget::new(vocab, r.format, &r.tail, limit.tokens, &limit.message, inner) {
            Ok(budget) => Some(Box::new(budget)),
            Err(inner) => inner,
        }
    }
}

impl Choice {
    /// The slot that the answer is shown in.
    pub fn slot(&self) -> usize {
        self.app.service.slot_of(self.events.task()).unwrap_or(0)
    }

    /// Waits until the engine has taken the request up.
    async fn wait_for_first(&mut self) -> Result<(), ApiError> {
        match self.events.next().await {
            Some(Event::Failed(e)) => Err(e.into()),
            Some(event) => {
                if let Event::Prompt(n) = event {
                    (self.taken_up, self.n_cached) = (true, n);
                }
                self.first = Some(event);
                Ok(())
            }
            None => Err(self.gone()),
        }
    }

    fn gone(&self) -> ApiError {
        let why = self.app.service.health().err().map_or_else(String::new, |e| e.to_string());
        ApiError::unavailable(format!("the request was cut off: {why}"))
    }

    /// The next piece; `None` behind the end.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, ApiError>>> {
        loop {
            if let Some(end) = self.end.take() {
                self.over = true;
                return Poll::Ready(Some(Ok(Piece::End(end))));
            }
            if self.over {
                return Poll::Ready(None);
            }
            let event = match self.first.take() {
                Some(event) => Some(event),
                None => match self.events.poll_next(cx) {
                    Poll::Ready(event) => event,
                    Poll::Pending => return Poll::Pending,
                },
            };
            let Some(event) = event else {
                self.over = true;
                return Poll::Ready(Some(Err(self.gone())));
            };
            if let Some(piece) = self.take(event) {
                return Poll::Ready(Some(piece));
            }
        }
    }

    /// As [`poll`](Self::poll).
    pub async fn next(&mut self) -> Option<Result<Piece, ApiError>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn take(&mut self, event: Event) -> Option<Result<Piece, ApiError>> {
        match event {
            Event::Prompt(n) => {
                if !self.taken_up {
                    (self.taken_up, self.n_cached) = (true, n);
                }
                return Some(Ok(Piece::Progress(n)));
            }
            Event::PromptLogprobs(p) => self.prompt_logprobs.push(p),
            Event::Logprobs(p) => self.next.logprobs.push(p),
            // Told where no text was asked for.
            Event::Embedding(_) => {}
            Event::Token(id) => return self.token(id).map(|d| Ok(Piece::Delta(d))),
            Event::Done(f) => {
                let mut events = Vec::new();
                let rest = self.stream.finish();
                let rest = self.cut_lines(&rest, true);
                self.read(&rest, true, &mut events);
                let word = self.stream.stopped().map(|i| self.stops[i].clone());
                let by_limit = word.is_none() && f.stop == StopReason::Word && self.cut.load(Relaxed);
                let stop = if by_limit { StopReason::Limit } else { f.stop };
                let (timings, has_calls, slot) = (f.timings, self.has_calls, self.slot());
                self.end = Some(End { stop, word, timings, has_calls, slot });
                self.app.metrics.note_end(&f, self.started);
                if let (Some(mut record), Some(folder)) = (self.record.take(), &self.app.options.record) {
                    record.end(stop, by_limit && self.indent == 0);
                    record.write(folder, self.events.task());
                }
                let mut last = std::mem::take(&mut self.next);
                if self.stream.stopped().is_some() {
                    // Tokens of a stop text are not of the answer.
                    last.logprobs.clear();
                }
                last.events = events;
                if !last.events.is_empty() || !last.logprobs.is_empty() || !last.ids.is_empty() {
                    return Some(Ok(Piece::Delta(last)));
                }
            }
            Event::Failed(e) => {
                self.over = true;
                return Some(Err(e.into()));
            }
        }
        None
    }

    fn token(&mut self, id: u32) -> Option<Delta> {
        let now = Instant::now();
        match self.last_token.replace(now) {
            None => self.app.metrics.note_first(now - self.started),
            Some(last) => self.app.metrics.note_gap(now - last),
        }
        self.n_said += 1;
        self.next.ids.push(id);
        if let Some(record) = &mut self.record {
            record.answer.push(id);
        }
        let text = self.stream.push((self.piece)(self.app.service.text().vocab(), id));
        let text = self.cut_lines(&text, false);
        if text.is_empty() {
            return None;
        }
        let mut events = Vec::new();
        self.read(&text, false, &mut events);
        if events.is_empty() {
            return None;
        }
        self.next.events = events;
        Some(std::mem::take(&mut self.next))
    }

    /// The text without a line that is set in too little: that is not of the answer. What may be the beginning of one is
    /// held back unless it is the last.
    fn cut_lines(&mut self, text: &str, last: bool) -> String {
        if self.indent == 0 {
            return text.to_owned();
        }
        if self.is_cut {
            return String::new();
        }
        let mut all = std::mem::take(&mut self.held);
        let begin = self.n_bytes - all.len();
        all.push_str(text);
        self.n_bytes += text.len();
        if let Some(end) = self.lines.push(text.as_bytes(), self.indent) {
            all.truncate(end - begin);
            self.is_cut = true;
        } else if let Some(end) = self.lines.blank_from().filter(|_| !last) {
            self.held = all.split_off(end - begin);
        }
        all
    }

    /// Reads text, and what was held back where it is the last.
    fn read(&mut self, text: &str, last: bool, out: &mut Vec<OutputEvent>) {
        match &mut self.parser {
            None if text.is_empty() => {}
            None => out.push(OutputEvent::Content(text.to_owned())),
            Some(parser) => {
                if !text.is_empty() {
                    out.extend(parser.push(text));
                }
                if last {
                    out.extend(parser.finish());
                }
            }
        }
        for e in out.iter() {
            self.has_calls |= matches!(e, OutputEvent::CallEnd { .. });
        }
    }

    /// `prompt_progress` when so many tokens are done.
    pub fn progress(&self, done: usize) -> Value {
        json!({
            "total": self.n_prompt,
            "cache": self.n_cached,
            "processed": done,
            "time_ms": self.started.elapsed().as_millis() as u64,
        })
    }

    /// The whole answer.
    ///
    /// # Errors
    /// The request failed.
    pub async fn whole(mut self) -> Result<Whole, ApiError> {
        let (mut output, mut ids, mut logprobs) = (Output::default(), Vec::new(), Vec::new());
        while let Some(piece) = self.next().await {
            match piece? {
                Piece::Progress(_) => {}
                Piece::Delta(d) => {
                    d.events.into_iter().for_each(|e| output.add(e));
                    ids.extend(d.ids);
                    logprobs.extend(d.logprobs);
                }
                Piece::End(end) => {
                    let prompt_logprobs = std::mem::take(&mut self.prompt_logprobs);
                    return Ok(Whole { output, ids, logprobs, prompt_logprobs, end });
                }
            }
        }
        Err(self.gone())
    }
}
