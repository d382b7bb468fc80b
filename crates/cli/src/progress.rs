//! A progress bar on long work, where someone watches.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

/// Set by Ctrl-C.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Whether somebody asks [`go_on`].
static LISTENING: AtomicBool = AtomicBool::new(false);

/// Makes Ctrl-C end the work at hand where somebody listens, and the program everywhere else; a second one ends
/// the program.
pub fn watch_interrupts() {
    let on_signal = || {
        if !LISTENING.load(Ordering::SeqCst) || INTERRUPTED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    };
    // Where no handler can be set, Ctrl-C ends the program at once, as ever.
    let _ = ctrlc::set_handler(on_signal);
}

/// Work that asks [`go_on`] often, while this lives.
pub struct Listening(());

/// From now on, Ctrl-C is heard by [`go_on`]; one that was heard before is forgotten.
pub fn listen() -> Listening {
    INTERRUPTED.store(false, Ordering::SeqCst);
    LISTENING.store(true, Ordering::SeqCst);
    Listening(())
}

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENING.store(false, Ordering::SeqCst);
    }
}

/// Whether to go on.
pub fn go_on() -> ControlFlow<()> {
    match INTERRUPTED.load(Ordering::SeqCst) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

/// Tells whoever reads stderr, if anybody still does.
pub fn say(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "firth: {text}");
}

/// A bar over `total` bytes on stderr; silent where stderr is no terminal.
pub struct Progress(ProgressBar);

impl Progress {
    /// A bar over `total` bytes of a load.
    pub fn new(total: u64) -> Self {
        Progress::named("loading", total)
    }

    /// A bar over `total` bytes of work of a name.
    pub fn named(work: &'static str, total: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Progress(ProgressBar::hidden());
        }
        let style = ProgressStyle::with_template("{msg} [{bar:40}] {bytes}/{total_bytes}");
        let bar = ProgressBar::new(total);
        bar.set_message(work);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress(bar)
    }

    /// Bytes more were read.
    pub fn add(&self, bytes: u64) -> ControlFlow<()> {
        self.0.inc(bytes);
        go_on()
    }

    /// The work is over.
    pub fn end(self) {
        self.0.finish_and_clear();
    }
}
