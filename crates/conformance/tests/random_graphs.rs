//! Random graphs, split over devices with kernels missing at random: the bits of one device, or a refusal.

use std::panic::{AssertUnwindSafe, catch_unwind};

use firth_conformance::data::Rng;
use firth_conformance::harness::{Bits, Case, against_reference, cpu, load, run, same};
use firth_conformance::random;
use firth_cpu::Level;
use firth_graph::{LoadError, Op, Part, Policy, fuse};

const GRAPHS: usize = 2000;

/// How the graphs went.
#[derive(Default, Debug)]
struct Tally {
    loaded: usize,
    refused: usize,
    /// Programs with something that crosses between devices.
    crossed: usize,
    loaded_in_place: usize,
    refused_in_place: usize,
    failed: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.loaded += other.loaded;
        self.refused += other.refused;
        self.crossed += other.crossed;
        self.loaded_in_place += other.loaded_in_place;
        self.refused_in_place += other.refused_in_place;
        self.failed.extend(other.failed);
    }
}

/// The bits of one device with every kernel.
fn alone(case: &Case, level: Level) -> Bits {
    let device = cpu("cpu", level, 1, Vec::new());
    let mut runner = load(&case.graph, &case.weights(), case.pages, vec![device], &Policy::FIRST)
        .expect("one device runs all");
    run(case, &mut runner, 0).expect("a step runs")
}

/// The bits of two devices, and whether something crossed.
fn split(case: &Case, rng: &mut Rng, allow_transfers: bool) -> Result<(Bits, bool), LoadError> {
    let levels: Vec<Level> = Level::available().collect();
    let mut device = |name| {
        let missing = Op::NAMES.iter().copied().filter(|_| rng.once_in(10)).collect();
        cpu(name, rng.pick(&levels), 1, missing)
    };
    let devices = vec![device("a"), device("b")];
    let seed = rng.bits();
    let prefer = |p: Part| Rng::new(&format!("{p:?} {seed}")).below(2);
    let policy = Policy { prefer: &prefer, allow_transfers };
    let mut runner = load(&case.graph, &case.weights(), case.pages, devices, &policy)?;
    let crossed = runner.plan().transfers().next().is_some();
    Ok((run(case, &mut runner, 0).expect("a step runs"), crossed))
}

fn one(seed: usize, tally: &mut Tally) {
    let case = random::case(seed);
    let best = Level::available().last().expect("a level");
    let expected = alone(&case, best);
    for allow_transfers in [true, false] {
        let found = split(&case, &mut Rng::new(&format!("devices {seed}")), allow_transfers);
        let (loaded, refused) = match allow_transfers {
            true => (&mut tally.loaded, &mut tally.refused),
            false => (&mut tally.loaded_in_place, &mut tally.refused_in_place),
        };
        match found {
            Ok((bits, crossed)) => {
                *loaded += 1;
                tally.crossed += usize::from(crossed && allow_transfers);
                if !same(&case, &bits, &expected) {
                    tally.failed.push(format!("graph {seed}, transfers {allow_transfers}: other bits"));
                }
            }
            Err(_) => *refused += 1,
        }
    }
}

fn some(seeds: impl Iterator<Item = usize>) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds {
        let mut result = Tally::default();
        match catch_unwind(AssertUnwindSafe(|| one(seed, &mut result))) {
            Ok(()) => tally.add(result),
            Err(_) => tally.failed.push(format!("graph {seed}: panicked")),
        }
    }
    tally
}

#[test]
fn split_graphs_give_the_bits_of_one_device() {
    let tally = std::thread::scope(|s| {
        let odd = s.spawn(|| some((1..GRAPHS).step_by(2)));
        let mut all = some((0..GRAPHS).step_by(2));
        all.add(odd.join().expect("panics are caught"));
        all
    });
    println!("{tally:?}");
    assert!(
        tally.failed.is_empty(),
        "{} failed: {:?}",
        tally.failed.len(),
        &tally.failed[..tally.failed.len().min(20)]
    );
    assert!(3 * tally.loaded >= GRAPHS, "only {} of {GRAPHS} graphs loaded", tally.loaded);
    assert!(3 * tally.crossed >= tally.loaded, "only {} of {} programs cross", tally.crossed, tally.loaded);
    assert!(tally.loaded_in_place > 0 && tally.refused_in_place > 0, "{tally:?}");
}

#[test]
fn fused_graphs_give_the_bits_of_plain_ones() {
    let best = Level::available().last().expect("a level");
    let device = cpu("cpu", best, 1, Vec::new());
    let (mut fired, mut seen) = (0, 0);
    for seed in 0..GRAPHS / 4 {
        let mut case = random::case(seed);
        let expected = alone(&case, best);
        let (fused, report) = fuse(&case.graph, &|op, types| device.supports(op, types));
        fired += report.fired.iter().map(|(_, n)| n).sum::<usize>();
        seen += usize::from(!report.fired.is_empty());
        case.graph = fused.finish().expect("a fused graph is a graph");
        assert!(same(&case, &alone(&case, best), &expected), "graph {seed}: fused, {report:?}");
    }
    assert!(seen > GRAPHS / 20, "fusion fired {fired} times in {seen} graphs");
}

#[test]
fn whole_graphs_agree_with_the_reference() {
    let best = Level::available().last().expect("a level");
    let (mut seen, mut failed) = (0, Vec::new());
    for seed in 0..GRAPHS / 4 {
        let case = random::case(seed);
        // An expert chosen by a rounding is another function.
        if case.graph.ops.iter().any(|o| o.op.name() == "router") {
            continue;
        }
        seen += 1;
        if let Err(e) = against_reference(&case, &case.weights(), &alone(&case, best), 2e-2) {
            failed.push(e);
        }
    }
    println!("{} of {seen}", failed.len());
    assert!(failed.is_empty(), "{} of {seen}: {}", failed.len(), failed.join("\n"));
}
