//! The thread that runs the steps.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use firth_engine::{EngineError, Event, Finished, JobId, Request};
use tokio::sync::mpsc::UnboundedSender;

use super::cache_dir::CacheDir;
use super::stats::{Board, SlotStatus, add_seconds};
use super::tally::CountAllocations;
use super::{Desk, GO_ON, Held, finish_of};
use crate::model::Model;

/// A request on its way to the scheduler.
pub(crate) struct Asked {
    pub task: u64,
    pub request: Request,
    pub sender: UnboundedSender<Event>,
    /// The slot that it is to be shown in.
    pub slot: Option<usize>,
}

pub(crate) enum Command {
    /// Answers to one prompt; the others follow the first.
    Submit(Vec<Asked>),
    Cancel(u64),
    Call(Box<dyn FnOnce(&mut Desk<'_>) + Send>),
    /// Finish what was taken by then, and end.
    Stop(Instant),
}

/// A request that the scheduler has.
struct Live {
    task: u64,
    sender: UnboundedSender<Event>,
    domain: u64,
    n_prompt: usize,
    /// Prompt, and what was said.
    ids: Vec<u32>,
    status: SlotStatus,
    slot: Option<usize>,
    /// The slot that it is to be shown in, where that is free.
    wish: Option<usize>,
    /// Those that wait until this one has computed the prompt.
    followers: Vec<Asked>,
}

pub(crate) struct Work {
    model: Model,
    board: Arc<Board>,
    inbox: Receiver<Command>,
    live: HashMap<JobId, Live>,
    /// The last request of each slot, and what is shown of it.
    slots: Vec<Held>,
    shown: Vec<SlotStatus>,
    end_by: Option<Instant>,
    failures: usize,
    cache_dir: Option<CacheDir>,
    allocations: Option<CountAllocations>,
}

/// A sign of life is given at least so often.
const BEAT: Duration = Duration::from_millis(250);
/// What is left of a load goes on for so long at a time while nobody asks for anything.
const SETTLE: Duration = Duration::from_millis(20);
/// Steps that may fail one behind the other before the engine is given up.
const MAX_FAILURES: usize = 3;

impl Work {
    pub fn new(
        mut model: Model,
        board: Arc<Board>,
        inbox: Receiver<Command>,
        cache_dir: Option<CacheDir>,
        allocations: Option<CountAllocations>,
    ) -> Work {
        let n = model.engine().bounds().s;
        let slots = vec![Held::default(); n];
        let shown = vec![SlotStatus::default(); n];
        let live = HashMap::with_capacity(2 * n);
        Work { model, board, inbox, live, slots, shown, end_by: None, failures: 0, cache_dir, allocations }
    }

    /// Runs until it is told to stop.
    pub fn run(mut self) {
        let board = self.board.clone();
        let guard = Guard(board.clone());
        let why = loop {
            if let ControlFlow::Break(why) = self.obey() {
                break why;
            }
            if let Err(e) = self.step() {
                self.failures += 1;
                tracing::error!("a step failed: {e}");
                if self.failures == MAX_FAILURES {
                    break e.to_string();
                }
            } else {
                self.failures = 0;
            }
        };
        board.die(why);
        self.write_cache();
        drop(guard);
    }

    /// Takes all commands that are there, and waits for one where nothing else is to be done.
    fn obey(&mut self) -> ControlFlow<String> {
        loop {
            self.board.beat();
            let idle = self.model.scheduler().is_idle() && self.live.is_empty();
            if let Some(by) = self.end_by
                && (idle || Instant::now() >= by)
            {
                return ControlFlow::Break("it was asked to".into());
            }
            let command = match idle {
                true => {
                    let unsettled = self.model.engine().settle(SETTLE);
                    match self.inbox.recv_timeout(if unsettled { Duration::ZERO } else { BEAT }) {
                        Ok(c) => c,
                        Err(RecvTimeoutError::Timeout) => {
                            if let Err(e) = self.model.engine().alive() {
                                return ControlFlow::Break(e.to_string());
                            }
                            self.write_cache();
                            continue;
                        }
                        Err(RecvTimeoutError::Disconnected) => {
                            return ControlFlow::Break("nobody is left".into());
                        }
                    }
                }
                false => match self.inbox.try_recv() {
                    Ok(c) => c,
                    Err(TryRecvError::Empty | TryRecvError::Disconnected) => return ControlFlow::Continue(()),
                },
            };
            self.take(command);
        }
    }

    fn write_cache(&mut self) {
        if let Some(dir) = &mut self.cache_dir {
            dir.write(&mut self.model);
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit(asked) => self.submit(asked),
            Command::Cancel(task) => self.cancel(task),
            Command::Call(f) => f(&mut Desk { model: &mut self.model, slots: &mut self.slots }),
            Command::Stop(by) => self.end_by = Some(by),
        }
        self.show();
    }

    fn submit(&mut self, mut asked: Vec<Asked>) {
        while !asked.is_empty() {
            let first = asked.remove(0);
            if first.sender.is_closed() {
                self.forget(1);
                continue;
            }
            // Without the cache nothing is to be gained by waiting.
            let followers = if first.request.cache { std::mem::take(&mut asked) } else { Vec::new() };
            let (domain, ids) = (first.request.domain, first.request.ids.clone());
            match self.model.scheduler().submit(first.request) {
                Ok(job) => {
                    let status = SlotStatus { task: first.task, busy: true, ..SlotStatus::default() };
                    let status = SlotStatus { n_prompt: ids.len(), ..status };
                    let (n_prompt, sender) = (ids.len(), first.sender);
                    let live = Live {
                        task: first.task,
                        sender,
                        domain,
                        n_prompt,
                        ids,
                        status,
                        slot: None,
                        wish: first.slot,
                        followers,
                    };
                    self.live.insert(job, live);
                }
                Err(e) => {
                    let _ = first.sender.send(Event::Failed(e));
                    self.forget(1);
                    asked = followers.into_iter().chain(asked).collect();
                }
            }
        }
    }

    fn cancel(&mut self, task: u64) {
        let follower = self.live.values_mut().find_map(|l| {
            let i = l.followers.iter().position(|f| f.task == task)?;
            Some(l.followers.remove(i))
        });
        if follower.is_some() {
            return self.forget(1);
        }
        let Some(job) = self.live.iter().find(|(_, l)| l.task == task).map(|(job, _)| *job) else { return };
        let finished = self.model.scheduler().cancel(job);
        self.end(job, finished.as_ref());
    }

    /// One step.
    fn step(&mut self) -> Result<(), EngineError> {
        let (live, shown) = (&mut self.live, &mut self.shown);
        let mut ended: Vec<(JobId, Option<Finished>)> = Vec::new();
        let mut started: Vec<JobId> = Vec::new();
        let (board, counts) = (&self.board, &self.board.counts);
        let busy = live.values().filter(|l| l.slot.is_some()).count() as u64;
        counts.busy_in_steps.fetch_add(busy, Relaxed);
        counts.steps.fetch_add(1, Relaxed);
        let allocated = || self.allocations.map_or(0, |count| count());
        let text = counts.text_allocations.load(Relaxed);
        let (before, mut told) = (allocated(), 0);
        let mut tell = |job, event| {
            let Some(l) = live.get_mut(&job) else { return ControlFlow::Break(()) };
            if l.note(&event, shown) {
                board.show(shown.iter().copied());
            }
            if let Some(finished) = finish_of(&event) {
                ended.push((job, finished.copied()));
            } else if matches!(event, Event::Token(_)) && !l.followers.is_empty() {
                started.push(job);
            }
            match l.sender.send(event) {
                Ok(()) => GO_ON,
                Err(_) => ControlFlow::Break(()),
            }
        };
        let ticked = self.model.scheduler().tick(&mut |job, event| {
            let start = allocated();
            let heard = tell(job, event);
            told += allocated() - start;
            heard
        });
        let others = told + counts.text_allocations.load(Relaxed) - text;
        counts.allocations.fetch_add(allocated() - before - others, Relaxed);
        for job in started {
            let followers = self.live.get_mut(&job).map(|l| std::mem::take(&mut l.followers));
            self.submit_each(followers.unwrap_or_default());
        }
        for (job, finished) in ended {
            self.end(job, finished.as_ref());
        }
        self.show();
        ticked
    }

    fn submit_each(&mut self, asked: Vec<Asked>) {
        asked.into_iter().for_each(|a| self.submit(vec![a]));
    }

    /// A request has ended, well or not.
    fn end(&mut self, job: JobId, finished: Option<&Finished>) {
        let Some(l) = self.live.remove(&job) else { return };
        self.forget(1);
        if let Some(dir) = &mut self.cache_dir {
            dir.dirty = true;
        }
        let c = &self.board.counts;
        if let Some(f) = finished {
            let t = &f.timings;
            c.prompt_tokens.fetch_add(t.prompt_n as u64, Relaxed);
            c.cached_tokens.fetch_add(t.cached_n as u64, Relaxed);
            add_seconds(&c.prompt_micros, t.prompt_seconds);
            c.predicted_tokens.fetch_add(t.predicted_n as u64, Relaxed);
            add_seconds(&c.predicted_micros, t.predicted_seconds);
            c.drafts.fetch_add(t.drafts as u64, Relaxed);
            c.draft_accepted_at.iter().zip(t.accepted_at).for_each(|(c, n)| {
                c.fetch_add(u64::from(n), Relaxed);
            });
            c.draft_tokens.fetch_add(t.draft_n as u64, Relaxed);
            c.draft_accepted.fetch_add(t.draft_n_accepted as u64, Relaxed);
        }
        c.most_tokens.fetch_max(l.ids.len() as u64, Relaxed);
        if let Some(slot) = l.slot {
            self.shown[slot] = SlotStatus { busy: false, ..l.status };
            self.slots[slot] = Held { domain: l.domain, ids: l.ids, n_prompt: l.n_prompt };
        }
        self.submit_each(l.followers);
    }

    fn forget(&self, n: usize) {
        self.board.taken.fetch_sub(n, Relaxed);
        self.board.counts.ended.fetch_add(n as u64, Relaxed);
    }

    /// Shows others what is going on.
    fn show(&mut self) {
        self.board.beat();
        self.board.show(self.shown.iter().copied());
        let scheduler = self.model.scheduler();
        let (waiting, parked) = (scheduler.waiting(), scheduler.parked());
        let memory = scheduler.memory();
        let stats = memory.stats();
        let (mut used, mut all) = (0, 0);
        for (group, spec) in memory.spec().groups.iter().enumerate() {
            let (free, cached) = memory.free_pages(group);
            used += spec.n_pages as usize - free - cached;
            all += spec.n_pages as usize;
        }
        let c = &self.board.counts;
        c.waiting.store(waiting, Relaxed);
        c.active.store(self.live.len().saturating_sub(waiting), Relaxed);
        c.parked.store(parked, Relaxed);
        c.cache_bytes.store(stats.cached_bytes, Relaxed);
        c.snapshots.store(stats.snapshots as u64, Relaxed);
        c.evictions.store(stats.evictions, Relaxed);
        c.pages[0].store(used as u64, Relaxed);
        c.pages[1].store(all as u64, Relaxed);
    }
}

impl Live {
    /// Keeps book of an event, and shows it in the request's slot; whether it has just taken that slot.
    fn note(&mut self, event: &Event, shown: &mut [SlotStatus]) -> bool {
        let begins = self.slot.is_none() && matches!(event, Event::Prompt(_));
        match event {
            Event::Prompt(n) => {
                if begins {
                    let wish = self.wish.filter(|i| shown.get(*i).is_some_and(|s| !s.busy));
                    self.slot = wish.or_else(|| shown.iter().position(|s| !s.busy));
                    self.status.n_cached = *n;
                }
                self.status.n_done = *n;
            }
            Event::Token(id) => {
                self.ids.push(*id);
                self.status.n_said = self.ids.len() - self.n_prompt;
                self.status.n_done = self.ids.len() - 1;
            }
            _ => return false,
        }
        if let Some(slot) = self.slot {
            shown[slot] = self.status;
        }
        begins
    }
}

/// Says that the thread has ended where it did so by a panic.
struct Guard(Arc<Board>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.die("its thread has panicked".into());
    }
}
