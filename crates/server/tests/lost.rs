//! A GPU that goes away under a server: whoever asks is told, and the model comes back without anyone's help.

mod common;

use std::io::Read;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use firth::{Model, Service, ServiceOptions};
use firth_gpu::{GpuDevice, GpuOptions};
use firth_server::{App, Door};
use serde_json::json;

/// What the test holds of the server's loads.
#[derive(Default)]
struct Loads {
    /// The device of the last.
    device: Mutex<Option<Arc<GpuDevice>>>,
    /// How many have begun, and how many may.
    begun: AtomicUsize,
    may: AtomicUsize,
    /// How many of those that begin fail first.
    failing: AtomicUsize,
    ended: AtomicBool,
}

impl Loads {
    fn load(&self) -> Result<Arc<App>, String> {
        self.begun.fetch_add(1, SeqCst);
        while self.begun.load(SeqCst) > self.may.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if self.failing.load(SeqCst) > 0 {
            self.failing.fetch_sub(1, SeqCst);
            return Err("no adapter, as the test wishes".into());
        }
        let device = Arc::new(GpuDevice::new(GpuOptions::default()).map_err(|e| e.to_string())?);
        let file = firth::bundled().map_err(|e| e.to_string())?;
        let on = &mut |_| ControlFlow::Continue(());
        let model =
            Model::load(file, vec![device.clone()], &common::engine(), on).map_err(|e| e.to_string())?;
        *self.device.lock().expect("nobody has panicked") = Some(device);
        let service = Service::start(model, ServiceOptions::default()).map_err(|e| e.to_string())?;
        App::new(service, common::options()).map_err(|e| e.to_string())
    }

    /// Loses the device of the last load; the engine must let go of it.
    #[track_caller]
    fn lose(&self) -> Arc<GpuDevice> {
        let device = self.device.lock().expect("nobody has panicked").take().expect("a device");
        device.lose();
        device
    }
}

/// Waits until it is so.
#[track_caller]
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(120), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_lost_gpu_is_told_and_the_model_comes_back() {
    if firth_gpu::adapters().is_empty() {
        assert!(!std::env::var("CI").is_ok_and(|v| v == "true"), "no adapter, and CI=true");
        eprintln!("skipped: no adapter");
        return;
    }
    let door = Door::new(false);
    let s = common::listen(door.clone(), None);
    let loads = Arc::new(Loads::default());
    let (l, d) = (loads.clone(), door.clone());
    let keeping =
        std::thread::spawn(move || firth_server::keep(&d, || l.load(), || !l.ended.load(SeqCst), |_| {}));
    assert_eq!(s.get("/health").status, 503, "the first load is held back");
    loads.may.store(1, SeqCst);
    until("the first load", || s.get("/health").status == 200);
    let ask = json!({"prompt": "Once upon a time", "n_predict": 12, "temperature": 0, "ignore_eos": true});
    let text = s.ask("/completion", &ask)["content"].clone();

    // At work: the request is cut off with the reason.
    let long =
        json!({"prompt": "Once", "n_predict": 400, "temperature": 0, "ignore_eos": true, "stream": true});
    let mut stream = s.open(&common::request("/completion", long.to_string().as_bytes(), ""));
    let mut first = [0; 256];
    assert!(stream.read(&mut first).expect("the stream begins") > 0);
    let old = loads.lose();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the stream ends");
    assert!(rest.contains("\"error\"") && rest.contains("503") && rest.contains("gpu:0"), "{rest}");
    // Until it is loaded again everything says so, and the engine holds nothing of the old device.
    until("health tells", || s.get("/health").status == 503);
    until("the second load", || loads.begun.load(SeqCst) == 2);
    for r in [s.get("/health"), s.post("/completion", &ask), s.get("/v1/models")] {
        assert_eq!((r.status, r.header("retry-after")), (503, Some("1")), "{}", r.text());
        assert!(r.text().contains("gpu:0") && r.text().contains("loading"), "{}", r.text());
    }
    until("the old device is let go", || Arc::strong_count(&old) == 1);
    assert_eq!(old.held_bytes(), 0, "nothing is held on it");
    drop(old);
    // A load that fails is told, too, and tried again.
    loads.failing.store(1, SeqCst);
    loads.may.store(3, SeqCst);
    until("the failed load is told", || {
        let r = s.get("/health");
        r.status == 503 && r.text().contains("as the test wishes")
    });
    until("the model is back", || s.get("/health").status == 200);
    assert_eq!(s.ask("/completion", &ask)["content"], text, "the same again");

    // At rest: nobody needs to ask before it is noticed.
    drop(loads.lose());
    until("the loss is noticed", || s.get("/health").status == 503);
    loads.may.store(4, SeqCst);
    until("the model is back again", || s.get("/health").status == 200);
    assert_eq!(s.ask("/completion", &ask)["content"], text);
    loads.ended.store(true, SeqCst);
    keeping.join().expect("no panic").expect("all went well");
}
