//! Architecture fixtures: a JSON file describes a tiny GGUF whose weights come from a generator keyed by tensor
//! name; beside it lie the reference logits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use firth_gguf::{Array, Gguf, Strings, Value, Writer};
use firth_quant::Dtype;
use serde_json::Value as Json;

/// A fixture, ready to load.
pub struct Fixture {
    /// The model file.
    pub file: Arc<Gguf>,
    /// Tokens of the reference.
    pub tokens: Vec<u32>,
    /// Reference logits `[tokens][vocab]`.
    pub logits: Vec<f32>,
}

/// Shared test data: `FIRTH_SHARED`, else `shared` beside the repository. `None` where it is absent, which is a
/// failure under `CI=true`.
pub fn shared() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    let dir = std::env::var_os("FIRTH_SHARED").map_or(beside, PathBuf::from);
    if dir.is_dir() {
        return Some(dir);
    }
    let ci = std::env::var("CI").is_ok_and(|v| v == "true");
    assert!(!ci, "shared test data are absent at {} and CI=true", dir.display());
    eprintln!("skipped: no shared test data at {} (set FIRTH_SHARED)", dir.display());
    None
}

/// Names of a folder's fixtures, without endings, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let files = std::fs::read_dir(dir).expect("a folder of fixtures").map(|e| e.expect("an entry").path());
    let json = files.filter(|p| p.extension().is_some_and(|e| e == "json"));
    let mut names: Vec<String> =
        json.map(|p| p.file_stem().expect("a name").to_str().expect("plain text").to_string()).collect();
    names.sort();
    names
}

/// Every architecture that keeps other things than keys and values of all its tokens, windows or states in slots,
/// and goes on from a text; nothing where the test data are absent.
pub fn with_states() -> Vec<(String, Arc<Gguf>)> {
    let Some(dir) = shared().map(|s| s.join("fixtures/arch")) else { return Vec::new() };
    let keeps = |file: &Arc<Gguf>| {
        let model = firth_models::load(file).ok()?;
        let info = model.info();
        Some(!info.both_ways && (info.slots || info.groups.iter().any(|g| g.window.is_some())))
    };
    let all = names(&dir).into_iter().map(|name| (read(&dir, &name).file, name));
    let kept = all.filter(|(file, _)| keeps(file) == Some(true)).map(|(file, name)| (name, file));
    let kept: Vec<_> = kept.collect();
    assert!(kept.len() >= 38, "architectures with windows or states: {}", kept.len());
    kept
}

/// Reads `NAME.json` and `NAME.f32` of a folder.
pub fn read(dir: &Path, name: &str) -> Fixture {
    let text = std::fs::read_to_string(dir.join(format!("{name}.json"))).expect("a fixture's description");
    let json: Json = serde_json::from_str(&text).expect("a fixture is JSON");
    let bytes = std::fs::read(dir.join(format!("{name}.f32"))).expect("a fixture's logits");
    let logits =
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect();
    let tokens = json["tokens"].as_array().expect("tokens").iter().map(|t| t.as_u64().expect("an id") as u32);
    Fixture { file: Arc::new(build(&json)), tokens: tokens.collect(), logits }
}

/// The GGUF of a description, in memory.
pub fn build(json: &Json) -> Gguf {
    let mut w = Writer::new();
    for (key, entry) in json["metadata"].as_object().expect("metadata") {
        w.metadata_mut().insert(key.as_str(), value(entry));
    }
    let seed = json["seed"].as_u64().expect("a seed");
    for t in json["tensors"].as_array().expect("tensors") {
        let name = t["name"].as_str().expect("a name");
        let shape: Vec<u64> =
            t["shape"].as_array().expect("a shape").iter().map(|n| n.as_u64().unwrap()).collect();
        let dtype = Dtype::from_name(t["type"].as_str().expect("a type")).expect("a known type");
        let values = weights(name, shape.iter().product::<u64>() as usize, seed);
        let mut bytes = vec![0; dtype.row_bytes(values.len()).expect("whole blocks")];
        firth_quant::encode(dtype, &values, &mut bytes).expect("a type with an encoder");
        w.add_tensor(name, &shape, dtype, bytes).expect("a legal tensor");
    }
    let mut out = Vec::new();
    w.write_to(&mut out).expect("memory takes bytes");
    Gguf::from_bytes(out, "fixture").expect("what was written can be read")
}

/// A tensor that takes the place of one of the same name, or is new.
pub struct Replaced {
    /// Its name.
    pub name: String,
    /// Its axes, fastest first.
    pub shape: Vec<u64>,
    /// Its type.
    pub dtype: Dtype,
    /// Its data.
    pub bytes: Vec<u8>,
}

/// A copy of a file with other values of keys and other tensors.
pub fn edited(file: &Gguf, keys: Vec<(String, Value)>, tensors: Vec<Replaced>) -> Gguf {
    let mut w = Writer::new();
    for (key, value) in file.metadata().iter() {
        w.metadata_mut().insert(key, value.clone());
    }
    for (key, value) in keys {
        w.metadata_mut().insert(key, value);
    }
    for t in file.tensors().iter().filter(|t| tensors.iter().all(|r| r.name != t.name)) {
        w.add_tensor(&t.name, &t.shape, t.dtype, file.data(t)).expect("a legal tensor");
    }
    for r in &tensors {
        w.add_tensor(&r.name, &r.shape, r.dtype, &r.bytes[..]).expect("a legal tensor");
    }
    let mut out = Vec::new();
    w.write_to(&mut out).expect("memory takes bytes");
    Gguf::from_bytes(out, "edited fixture").expect("what was written can be read")
}

fn value(entry: &Json) -> Value {
    let v = &entry["value"];
    match entry["type"].as_str().expect("a type") {
        "array" => {
            let list = v.as_array().expect("a list");
            let ints = || list.iter().map(|x| x.as_i64().expect("an integer"));
            Value::Array(match entry["of"].as_str().expect("an element type") {
                "float32" => Array::F32(list.iter().map(|x| x.as_f64().expect("a number") as f32).collect()),
                "int32" => Array::I32(ints().map(|x| x as i32).collect()),
                "uint32" => Array::U32(ints().map(|x| x as u32).collect()),
                "uint64" => Array::U64(list.iter().map(|x| x.as_u64().expect("an integer")).collect()),
                "bool" => Array::Bool(list.iter().map(|x| x.as_bool().expect("a flag")).collect()),
                "string" => Array::Str(list.iter().map(|x| x.as_str().expect("text")).collect::<Strings>()),
                other => panic!("element type {other}"),
            })
        }
        "string" => Value::Str(v.as_str().expect("text").into()),
        "uint32" => Value::U32(v.as_u64().expect("an integer") as u32),
        "int32" => Value::I32(v.as_i64().expect("an integer") as i32),
        "float32" => Value::F32(v.as_f64().expect("a number") as f32),
        "bool" => Value::Bool(v.as_bool().expect("a flag")),
        "uint64" => Value::U64(v.as_u64().expect("an integer")),
        other => panic!("type {other}"),
    }
}

/// The generator: splitmix64 over the name's hash; see the fixtures' own description.
pub fn weights(name: &str, n: usize, seed: u64) -> Vec<f32> {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let state = hash ^ seed.wrapping_mul(GAMMA);
    let one = |i: usize| {
        let mut z = state.wrapping_add((i as u64 + 1).wrapping_mul(GAMMA));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let u = (z >> 40) as f64 / f64::from(1 << 24);
        let w = (u - 0.5) * 2.0 * 0.17320508;
        let w = match () {
            () if name.contains("ssm_a") => -w.abs(),
            () if name.ends_with("norm.weight") => 1.0 + w,
            () => w,
        };
        w as f32
    };
    (0..n).map(one).collect()
}

/// Normalised squared error of `found` against `expected`; infinite where a value is no number.
pub fn nmse(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len(), "values to compare");
    let sum = |f: &dyn Fn(f64, f64) -> f64| {
        found.iter().zip(expected).map(|(a, b)| f(f64::from(*a), f64::from(*b))).sum::<f64>()
    };
    let e = sum(&|a, b| (a - b) * (a - b)) / sum(&|_, b| b * b);
    if e.is_nan() { f64::INFINITY } else { e }
}
