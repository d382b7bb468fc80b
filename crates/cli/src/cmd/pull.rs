//! `firth pull`: a model from the hub.

use anyhow::Result;
use firth::PullOptions;

use crate::args::Pull;
use crate::progress::{self, Progress};

/// Runs the command.
pub fn pull(a: Pull) -> Result<()> {
    let _listening = progress::listen();
    let mut bar: Option<(String, u64, Progress)> = None;
    let fetched = firth::pull(&a.name, &PullOptions::default(), &mut |p| {
        if bar.as_ref().is_none_or(|(file, ..)| file != p.file) {
            eprintln!("{}: {:.1} MiB", p.file, p.size as f64 / f64::from(1 << 20));
            bar = Some((p.file.to_owned(), 0, Progress::named("fetching", p.size)));
        }
        let (_, shown, bar) = bar.as_mut().expect("just made");
        let more = p.here.saturating_sub(*shown);
        *shown = p.here;
        let _ = bar.add(more);
        progress::go_on()
    });
    if let Some((_, _, bar)) = bar {
        bar.end();
    }
    for path in fetched? {
        println!("{}", path.display());
    }
    Ok(())
}
