//! `firth bench`: prefill and decode rates with spread, as shares of ceilings measured in the same run.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use firth_cpu::{ReadGauge, int8_ceiling};
use firth_engine::{Encoding, Engine, Feed, Seq, Want};
use serde_json::json;

use crate::args::Bench;
use crate::devices::{cpu, engine_options};
use crate::progress::go_on;

/// A set of measured rates.
struct Rates(Vec<f64>);

impl Rates {
    fn sorted(&self) -> Vec<f64> {
        let mut v = self.0.clone();
        v.sort_by(f64::total_cmp);
        v
    }

    fn median(&self) -> f64 {
        let v = self.sorted();
        v.get(v.len() / 2).copied().unwrap_or(0.0)
    }

    fn spread(&self) -> (f64, f64) {
        let v = self.sorted();
        (v.first().copied().unwrap_or(0.0), v.last().copied().unwrap_or(0.0))
    }
}

/// Runs the command.
pub fn bench(a: Bench) -> Result<()> {
    if a.repeat == 0 || a.prompt + a.n == 0 || a.sequences == 0 {
        let (r, p, n) = (a.repeat, a.prompt, a.n);
        bail!("nothing to measure: -r is {r}, -p {p}, -n {n}, --sequences {}", a.sequences);
    }
    let file = super::open(a.model.as_deref(), &a.common.override_kv)?;
    let mut options = engine_options(&a.common);
    options.ctx = Some(options.ctx.unwrap_or(a.prompt + a.n + 8).max(a.prompt + a.n + 8));
    options.cache_bytes = 0;
    options.parallel = a.sequences;
    let bytes_per_token = bytes_per_token(&file);
    let mut model = super::load(file, &a.common, &options)?;
    let engine = model.engine();
    while engine.settle(Duration::MAX) {}
    // A first run warms up; the memory is taken before the ceilings take theirs.
    one(engine, &a, &mut Rates(Vec::new()), &mut Rates(Vec::new()))?;
    let peak = peak_memory();
    let gauge = cpu(&a.common)?;
    let memory = ReadGauge::new(gauge.pool());
    let (mut read, mut weights_read, mut int8) = (0.0f64, 0.0f64, 0.0f64);
    let (mut prefill, mut decode) = (Rates(Vec::new()), Rates(Vec::new()));
    for _ in 0..a.repeat {
        if go_on().is_break() {
            bail!("interrupted");
        }
        // Between the repetitions: others on the machine take from all alike.
        read = read.max(memory.measure(gauge.pool()));
        weights_read = weights_read.max(engine.read_rate().unwrap_or(0.0));
        int8 = int8.max(int8_ceiling(gauge.pool(), gauge.level()));
        one(engine, &a, &mut prefill, &mut decode)?;
    }
    let ops_per_token = 2.0 * matmul_weights(engine) as f64;
    // Sequences that decode together share one read of the weights.
    let step_bytes = bytes_per_token + a.sequences as u64 * engine.state_bytes(a.prompt + a.n / 2);
    let share_of_read = decode.median() / a.sequences as f64 * step_bytes as f64 / read;
    let (profile, encoding) = if a.profile { profile(engine, &a)? } else { Default::default() };
    // Microseconds of the host for each kernel that a device starts.
    let each = |time: Duration| time.as_secs_f64() * 1e6 / encoding.dispatches.max(1) as f64;
    let [by_clock, own, warm] = [encoding.clock, encoding.own, encoding.warm].map(each);
    let report = json!({
        "level": gauge.level().to_string(),
        "threads": gauge.pool().threads(),
        "read_bytes_per_second": read,
        "weights_read_bytes_per_second": weights_read,
        "int8_ops_per_second": int8,
        "prompt": a.prompt,
        "prefill_per_second": prefill.median(),
        "prefill_spread": prefill.spread(),
        "prefill_share_of_int8": prefill.median() * ops_per_token / int8,
        "n": a.n,
        "decode_per_second": decode.median(),
        "decode_spread": decode.spread(),
        "sequences": a.sequences,
        "decode_share_of_read": share_of_read,
        "bytes_per_token": bytes_per_token,
        "bytes_per_step": step_bytes,
        "peak_memory": peak,
        "load": {"weights": engine.report().weight_bytes, "scratch": engine.report().scratch_bytes, "seconds": engine.report().seconds},
        "profile": profile.iter().map(|(n, s, c)| json!({"op": n, "seconds": s, "calls": c})).collect::<Vec<_>>(),
        "encoding": {"dispatches": encoding.dispatches, "clock_us": by_clock, "own_us": own, "warm_us": warm},
    });
    if a.json {
        return super::print_json(&report);
    }
    println!(
        "{}, {} threads; read {:.1} GB/s (the weights where they lie: {:.1}), int8 {:.2} TOP/s (measured in this run)",
        gauge.level(),
        gauge.pool().threads(),
        read / 1e9,
        weights_read / 1e9,
        int8 / 1e12
    );
    let line = |name: &str, r: &Rates, share: f64, of: &str| {
        let (min, max) = r.spread();
        println!(
            "{name}: {:.1} tokens/s (median of {}, {min:.1} to {max:.1}), {:.0}% of {of}",
            r.median(),
            r.0.len(),
            share * 100.0
        );
    };
    line(
        &format!("prefill {}", a.prompt),
        &prefill,
        prefill.median() * ops_per_token / int8,
        "the int8 peak",
    );
    line(
        &match a.sequences {
            1 => format!("decode {}", a.n),
            s => format!("decode {} of {s} sequences", a.n),
        },
        &decode,
        share_of_read,
        "the read ceiling",
    );
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let (weights, scratch) = (engine.report().weight_bytes, engine.report().scratch_bytes);
    if let Some(peak) = peak {
        println!(
            "peak memory {:.0} MB; weights {:.0} MB, scratch {:.0} MB",
            mb(peak),
            mb(weights),
            mb(scratch)
        );
    }
    let total: f64 = profile.iter().map(|p| p.1).sum();
    for (name, seconds, calls) in profile {
        println!("  {name:<18} {:>6.1}%  {:>9.3} ms  {calls} calls", seconds / total * 100.0, seconds * 1e3);
    }
    if encoding.dispatches > 0 {
        println!(
            "  to encode a dispatch: {by_clock:.2} us by the clock, {own:.2} us of this thread's own time, {warm:.2} us with warm caches"
        );
    }
    Ok(())
}

/// Tensors of the file that one decoded token reads: all matrices, of experts those that are used, without the layers of
/// a drafting head.
fn bytes_per_token(file: &firth::Gguf) -> u64 {
    let m = file.metadata();
    let arch = m.str("general.architecture").ok().flatten().unwrap_or_default();
    let key = |k: &str| m.u32(&format!("{arch}.{k}")).ok().flatten().unwrap_or(0) as u64;
    let (experts, used) = (key("expert_count").max(1), key("expert_used_count").max(1));
    let tied = file.tensor("output.weight").is_none();
    let layers = key("block_count").saturating_sub(key("nextn_predict_layers"));
    let layer = |name: &str| name.strip_prefix("blk.")?.split('.').next()?.parse::<u64>().ok();
    (file.tensors().iter())
        .filter(|t| layer(&t.name).is_none_or(|l| l < layers))
        .filter(|t| tied || t.name != "token_embd.weight")
        .map(|t| if t.name.contains("_exps") { t.len / experts * used.min(experts) } else { t.len })
        .sum()
}

/// Weights that a token of a prompt is multiplied with; the head is needed for the last row alone.
fn matmul_weights(engine: &Engine) -> u64 {
    engine.layer_weights()
}

fn one(engine: &mut Engine, a: &Bench, prefill: &mut Rates, decode: &mut Rates) -> Result<()> {
    let seqs = (0..a.sequences).map(|_| engine.open(0)).collect::<Result<Vec<_>, _>>()?;
    let result = measure(engine, a, &seqs, prefill, decode);
    for seq in seqs {
        engine.close(seq);
    }
    result
}

fn measure(
    engine: &mut Engine,
    a: &Bench,
    seqs: &[Seq],
    prefill: &mut Rates,
    decode: &mut Rates,
) -> Result<()> {
    let vocab = engine.info().n_vocab as u32;
    let id = |i: usize| (i as u32).wrapping_mul(2_654_435_761) % vocab;
    if a.prompt > 0 {
        let ids: Vec<u32> = (0..a.prompt).map(id).collect();
        let start = Instant::now();
        for seq in seqs {
            feed(engine, *seq, &ids)?;
        }
        prefill.0.push((a.prompt * seqs.len()) as f64 / start.elapsed().as_secs_f64());
    }
    if a.n > 0 {
        let start = Instant::now();
        for i in 0..a.n {
            let ids = [id(i + 7)];
            let one =
                |seq: &Seq| Feed { seq: *seq, ids: &ids, embeds: None, want: Want::Last, sampler: None };
            engine.step(&seqs.iter().map(one).collect::<Vec<_>>())?;
        }
        decode.0.push((a.n * seqs.len()) as f64 / start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// The most memory that the process has held; `None` where the system does not say.
fn peak_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|l| l.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

fn feed(engine: &mut Engine, seq: Seq, ids: &[u32]) -> Result<()> {
    let most = engine.bounds().t;
    for (i, part) in ids.chunks(most).enumerate() {
        let last = (i + 1) * most >= ids.len();
        let want = if last { Want::Last } else { Want::None };
        engine.step(&[Feed { seq, ids: part, embeds: None, want, sampler: None }])?;
    }
    Ok(())
}

fn profile(engine: &mut Engine, a: &Bench) -> Result<(Vec<(String, f64, u64)>, Encoding)> {
    engine.profile(true);
    one(engine, a, &mut Rates(Vec::new()), &mut Rates(Vec::new()))?;
    let encoding = engine.encoding();
    let mut p = engine.profile(false);
    p.sort_by(|x, y| y.1.total_cmp(&x.1));
    Ok((p, encoding))
}
