//! Every op against its reference, and every device's bits against the definition.

use std::collections::BTreeSet;

use firth_conformance::cases;
use firth_conformance::harness::check;
use firth_graph::Op;

/// Checks a group of cases on two threads; all failures are told.
fn group(name: &str) {
    let all = cases::group(name);
    let check_some = |start: usize| {
        all.iter().skip(start).step_by(2).filter_map(|c| check(c).err()).collect::<Vec<String>>()
    };
    let failed: Vec<String> = std::thread::scope(|s| {
        let other = s.spawn(|| check_some(1));
        let mut failed = check_some(0);
        failed.extend(other.join().expect("a check"));
        failed
    });
    assert!(failed.is_empty(), "{} of {} cases failed:\n{}", failed.len(), all.len(), failed.join("\n"));
}

firth_conformance::test_groups!(group);

#[test]
fn every_op_has_cases() {
    let all = cases::all();
    let ops = all.iter().flat_map(|(_, cases)| cases).flat_map(|c| &c.graph.ops);
    let seen: BTreeSet<&str> = ops.map(|o| o.op.name()).collect();
    let missing: Vec<&&str> = Op::NAMES.iter().filter(|n| !seen.contains(**n)).collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
}

#[test]
fn names_of_cases_are_their_own() {
    let all = cases::all();
    let mut seen = BTreeSet::new();
    for c in all.iter().flat_map(|(_, cases)| cases) {
        assert!(seen.insert(&c.name), "two cases called `{}`", c.name);
    }
}
