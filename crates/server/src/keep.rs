//! A model that comes back: an engine that ends by itself, as with its device, is loaded anew.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::app::App;
use crate::door::Door;

/// How often it is asked whether the engine is still there.
const LOOK: Duration = Duration::from_millis(50);
/// Between a load that failed and the next, at first and at most.
const PAUSE: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Loads a model and opens the door to it. Where its engine ends by itself (a lost device, a panic), the door says why, what
/// the engine held is let go, and the model is loaded again, until that succeeds: another device may take its place or the
/// same come back. Returns when `go_on` says so. `ready` is told of each load that succeeds, and of what ended the engine or
/// a later load.
///
/// # Errors
/// The first load fails.
pub fn keep<E: Display>(
    door: &Door,
    mut load: impl FnMut() -> Result<Arc<App>, E>,
    go_on: impl Fn() -> bool,
    mut ready: impl FnMut(Result<(), &str>),
) -> Result<(), E> {
    let mut app = load()?;
    loop {
        let service = app.service.clone();
        door.open(app);
        ready(Ok(()));
        let why = loop {
            if !go_on() {
                return Ok(());
            }
            match service.ended() {
                Some(why) => break why,
                None => std::thread::sleep(LOOK),
            }
        };
        door.shut(format!("The engine has stopped: {why}; loading model"));
        ready(Err(&why));
        // Nothing of the old model stays: its memory is what the new one needs.
        service.stop(Duration::ZERO);
        drop(service);
        let mut pause = PAUSE[0];
        app = loop {
            match load() {
                Ok(app) => break app,
                Err(_) if !go_on() => return Ok(()),
                Err(e) => {
                    door.shut(format!("The engine has stopped: {why}; loading the model again failed: {e}"));
                    ready(Err(&e.to_string()));
                }
            }
            let until = Instant::now() + pause;
            while Instant::now() < until {
                if !go_on() {
                    return Ok(());
                }
                std::thread::sleep(LOOK);
            }
            pause = (2 * pause).min(PAUSE[1]);
        };
    }
}
