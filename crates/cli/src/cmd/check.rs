//! `firth check`: the cut law on this machine and this model.

use std::sync::Arc;

use anyhow::{Result, bail};
use firth::{CheckOptions, Device, Verdict};
use firth_cpu::{CpuDevice, CpuOptions, Level};

use crate::args::Check;
use crate::devices::{engine_options, threads};

/// Tokens of the sequence: a text where the model has a vocabulary, else numbers spread over it.
const TEXT: &str = "It is a truth universally acknowledged, that a single man in possession of a good fortune, \
must be in want of a wife. However little known the feelings or views of such a man may be on his first entering a \
neighbourhood, this truth is so well fixed in the minds of the surrounding families, that he is considered as the \
rightful property of some one or other of their daughters. 1, 22, 333: fn main() { println!(\"caf\u{e9}\"); }";

/// Runs the command.
pub fn check(a: Check) -> Result<()> {
    let file = super::open(a.model.as_deref(), &a.common.override_kv)?;
    let ids = ids(&file, a.n)?;
    let levels = levels();
    let level_names: Vec<String> = levels.iter().map(|l| l.to_string()).collect();
    let devices = |level: &str, threads: usize| -> Vec<Arc<dyn Device>> {
        let level = *levels.iter().find(|l| l.to_string() == level).expect("one of the levels listed");
        let (without, max_bytes, map) = (Vec::new(), a.common.max_memory, a.common.map);
        vec![Arc::new(CpuDevice::new(CpuOptions {
            threads,
            level,
            without,
            max_bytes,
            map,
            name: "cpu".into(),
        }))]
    };
    let options = CheckOptions {
        ids,
        engine: engine_options(&a.common),
        levels: level_names,
        devices: &devices,
        threads: threads(a.common.threads)?,
    };
    println!("{} tokens, base: alone, one step, {}", options.ids.len(), options.levels[0]);
    let rows = firth::check(&file, &options, &mut |row| {
        let verdict = match &row.verdict {
            Verdict::Equal => "equal".into(),
            Verdict::Differs { row, values } => format!("DIFFERS from token {row} on, {values} values"),
            Verdict::NotInThisBuild => "not in this build".into(),
        };
        println!("{:<40} {verdict}", row.what);
    })?;
    if rows.iter().any(|r| matches!(r.verdict, Verdict::Differs { .. })) {
        bail!("the cut law does not hold on this machine; please report the table above");
    }
    Ok(())
}

fn ids(file: &firth::Gguf, n: usize) -> Result<Vec<u32>> {
    let vocab = firth_text::Vocab::from_metadata(file.metadata())?;
    let how = firth_text::Encode { add_special: true, parse_special: false };
    let mut ids = match vocab.has_text() {
        true => vocab.encode(TEXT, how)?,
        false => Vec::new(),
    };
    let len = vocab.len().max(1) as u32;
    let mut i = 0u32;
    while ids.len() < n {
        ids.push(i.wrapping_mul(2_654_435_761) % len);
        i += 1;
    }
    ids.truncate(n.max(4));
    Ok(ids)
}

/// What the machine has, fastest first.
fn levels() -> Vec<Level> {
    let mut levels: Vec<Level> = Level::available().collect();
    levels.sort_by_key(|l| match l {
        Level::Avx512 => 0,
        Level::Avx2 => 1,
        Level::Emulated4 => 2,
        Level::Scalar => 3,
    });
    levels
}
