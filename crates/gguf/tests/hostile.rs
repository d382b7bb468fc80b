//! Broken files of every kind end with an error that says where, what was found and what was expected, at once.
#![allow(missing_docs)]

mod common;

use std::time::{Duration, Instant};

use common::Raw;
use firth_gguf::Gguf;

const F32: u32 = 0;
const Q4_0: u32 = 2;

/// Each of `parts` must be in the error, which must come within 100 ms.
#[track_caller]
fn check(raw: Raw, parts: &[&str]) {
    let start = Instant::now();
    let message = Gguf::from_bytes(raw.0, "broken.gguf").unwrap_err().to_string();
    let took = start.elapsed();
    for part in ["broken.gguf"].iter().chain(parts) {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
    // Far above what it takes: a bound that only a hang or quadratic growth meets, on any machine.
    assert!(took < Duration::from_secs(5), "took {took:?}");
}

/// A file with one tensor of this shape, type and offset.
fn one(shape: &[u64], dtype: u32, offset: u64) -> Raw {
    Raw::new(3, 1, 0).tensor("blk.0.w", shape, dtype, offset).data(32, 256)
}

#[test]
fn magic_and_version() {
    check(Raw(Vec::new()), &["starts with"]);
    check(Raw(b"GGU".to_vec()), &["starts with"]);
    check(Raw(b"GGML\x03\0\0\0".to_vec()), &["[47, 47, 4d, 4c]", "[47, 47, 55, 46]"]);
    for (start, hint) in [
        (&b""[..], "empty"),
        (b"\x10\0\0\0\0\0\0\0{\"__metadata__\"", "config.json"),
        (b"version https://git-lfs.test/spec/v1", "git lfs pull"),
        (b"<!doctype html>", "web page"),
        (b"PK\x03\x04", "PyTorch"),
        (b"tjgg\x03\0\0\0", "before GGUF"),
    ] {
        check(Raw(start.to_vec()), &["starts with", hint]);
    }
    check(Raw(b"GGUF\x03\0".to_vec()), &["version", "4", "2"]);
    for version in [0, 1, 4, 0x0100_0003] {
        check(Raw::new(version, 0, 0), &["version", &version.to_string(), "expected 2 or 3"]);
    }
    for version in [2_u32, 3] {
        check(Raw::new(version.swap_bytes(), 0, 0), &["big-endian"]);
    }
}

#[test]
fn both_versions_are_read() {
    for version in [2, 3] {
        let raw = Raw::new(version, 1, 1).key_u32("a", 7).tensor("t", &[4], F32, 0).data(32, 16);
        let gguf = Gguf::from_bytes(raw.0, "sound.gguf").unwrap();
        assert_eq!(gguf.metadata().u32("a"), Ok(Some(7)));
        assert_eq!(gguf.data(gguf.tensor("t").unwrap()), [0; 16]);
    }
}

#[test]
fn counts_of_tensors_and_keys() {
    for n in [1, 1 << 59, 1 << 63, u64::MAX] {
        check(Raw::new(3, n, 0), &["n_tensors", &(n as i64).to_string(), "0 to 0"]);
        check(Raw::new(3, 0, n), &["n_kv", &(n as i64).to_string(), "0 to 0"]);
    }
    check(Raw::new(3, 1 << 59, 0).data(1, 330), &["n_tensors", "0 to 10", "354 bytes"]);
    check(Raw::new(3, 0, 2).key_u32("a", 1).data(1, 14), &["key 1", "empty"]);
}

#[test]
fn keys() {
    check(Raw::new(3, 0, 1).u64(1 << 40).data(1, 1000), &["key 0", "1099511627776", "exceeds file size"]);
    check(Raw::new(3, 0, 1).string(b"").u32(4).u32(0).data(1, 9), &["key 0", "empty"]);
    check(Raw::new(3, 0, 1).string(b"a\0b").u32(4).u32(0), &["key 0", "NUL"]);
    check(Raw::new(3, 0, 1).string(b"a\xff").u32(4).u32(0), &["key 0", "UTF-8"]);
    check(Raw::new(3, 0, 1).string(&[b'k'; 65_536]).u32(4).u32(0), &["key 0", "65536", "65535"]);
    check(Raw::new(3, 0, 2).key_u32("twice", 1).key_u32("twice", 1), &["key `twice`", "occurs twice"]);
    for id in [13, 0xffff_ffff] {
        check(Raw::new(3, 0, 1).string(b"k").u32(id).u64(0), &["`k`", &id.to_string(), "0 to 12"]);
    }
}

#[test]
fn strings_and_arrays() {
    let string = Raw::new(3, 0, 1).string(b"s").u32(8);
    check(string.clone().u64(1 << 40).data(1, 950), &["key `s`", "1099511627776", "exceeds file size"]);
    check(string.u64(u64::MAX), &["key `s`", &u64::MAX.to_string()]);
    for element_type in [0, 7, 4, 6, 8, 10, 12] {
        for n in [1 << 63, u64::MAX, 1 << 61, 1 << 31] {
            let raw = Raw::new(3, 0, 1).key_array("a", element_type, n);
            check(raw, &["key `a`", &n.to_string(), "0 are left"]);
        }
    }
    check(Raw::new(3, 0, 1).key_array("a", 9, 1).u64(0), &["key `a`", "9", "no array"]);
    check(Raw::new(3, 0, 1).key_array("a", 77, 1).u64(0), &["key `a`", "77"]);
    let second = Raw::new(3, 0, 1).key_array("a", 8, 2).string(b"x").u64(100).u64(0);
    check(second, &["element 1 of key `a`", "100", "8 are left"]);
}

#[test]
fn alignment() {
    for found in [0, 3, 1 << 17, 1 << 31] {
        let raw = Raw::new(3, 0, 1).key_u32("general.alignment", found);
        check(raw, &["general.alignment", &found.to_string(), "1 to 65536"]);
    }
    let key = || Raw::new(3, 0, 1).string(b"general.alignment");
    check(key().u32(5).u32(32), &["general.alignment", "i32", "u32"]);
    check(key().u32(8).string(b"32"), &["general.alignment", "string", "u32"]);
    // A header padded for 32 whose key says 64.
    let raw = Raw::new(3, 2, 1).key_u32("general.alignment", 64);
    let raw = raw.tensor("a", &[8], F32, 0).tensor("b", &[8], F32, 32).data(32, 64);
    check(raw, &["`b`", "32", "64"]);
}

#[test]
fn names_and_axes() {
    let long = "n".repeat(64);
    check(Raw::new(3, 1, 0).tensor(&long, &[1], F32, 0).data(32, 32), &["tensor 0", "64", "63"]);
    check(Raw::new(3, 1, 0).tensor("", &[1, 1], F32, 0).data(32, 32), &["tensor 0", "empty"]);
    check(Raw::new(3, 1, 0).tensor("a\0", &[1], F32, 0).data(32, 32), &["tensor 0", "NUL"]);
    let twice = Raw::new(3, 2, 0).tensor("w", &[8], F32, 0).tensor("w", &[8], F32, 32).data(32, 64);
    check(twice, &["tensor `w`", "twice"]);
    check(one(&[], F32, 0), &["blk.0.w", "0 axes", "1 to 4"]);
    check(one(&[1; 5], F32, 0), &["blk.0.w", "5 axes", "1 to 4"]);
    check(Raw::new(3, 1, 0).string(b"w").u32(u32::MAX).data(32, 32), &["`w`", "4294967295"]);
}

#[test]
fn sizes() {
    check(one(&[1 << 63, 1], F32, 0), &["blk.0.w", "axis 0", "-9223372036854775808"]);
    check(one(&[4, u64::MAX], F32, 0), &["blk.0.w", "axis 1", "-1"]);
    check(one(&[i64::MAX as u64, 2], F32, 0), &["blk.0.w", "overflows"]);
    check(one(&[i64::MAX as u64, 2, 0], F32, 0), &["blk.0.w", "overflows"]);
    check(one(&[0, i64::MAX as u64, 2], F32, 0), &["blk.0.w", "overflows"]);
    check(one(&[1 << 32, 1 << 32, 1 << 32], F32, 0), &["blk.0.w", "overflows"]);
    check(one(&[1 << 61], F32, 0), &["blk.0.w", "overflows"]);
    check(one(&[i64::MAX as u64 / 4], F32, 0), &["blk.0.w", "9223372036854775804"]);
    let wide = "17592186044420"; // 4 bytes each for 2^42 + 1 elements
    check(one(&[1, (1 << 42) + 1], F32, 0), &["blk.0.w", wide, "byte 96", "352"]);
    check(one(&[33], Q4_0, 0), &["blk.0.w", "33", "multiple of 32", "Q4_0"]);
    check(one(&[65], F32, 0), &["blk.0.w", "260", "byte 64", "320"]);
}

/// Sizes that only add up to more than 64 bits.
#[test]
fn sums_do_not_wrap() {
    let huge = i64::MAX as u64 / 4;
    let raw = (0..4).fold(Raw::new(3, 4, 0), |raw, i| raw.tensor(&format!("t{i}"), &[huge], F32, 0));
    check(raw.data(32, 64), &["`t0`"]);
    let raw = Raw::new(3, 2, 0).tensor("a", &[8], F32, 0).tensor("b", &[huge], F32, 32).data(32, 64);
    check(raw, &["`b`", &(huge * 4).to_string()]);
}

#[test]
fn types() {
    check(one(&[32], 43, 0), &["blk.0.w", "43"]);
    check(one(&[32], u32::MAX, 0), &["blk.0.w", "4294967295"]);
    for (id, name) in [(4, "Q4_2"), (5, "Q4_3"), (31, "Q4_0_4_4"), (36, "IQ4_NL_4_4")] {
        check(one(&[256], id, 0), &["blk.0.w", name, "removed"]);
    }
    for (id, name) in [(9, "Q8_1"), (15, "Q8_K")] {
        check(one(&[256], id, 0), &["blk.0.w", name, "never stored"]);
    }
}

#[test]
fn offsets() {
    for found in [1, 31, 64, u64::MAX, u64::MAX - 31] {
        check(one(&[4], F32, found), &["blk.0.w", &found.to_string(), "expected 0"]);
    }
    for found in [0, 16, 33, 64] {
        let raw = Raw::new(3, 2, 0).tensor("a", &[4], F32, 0).tensor("b", &[4], F32, found);
        check(raw.data(32, 64), &["`b`", &found.to_string(), "expected 32"]);
    }
}

#[test]
fn bytes_after_the_end() {
    let raw = Raw::new(3, 1, 0).tensor("w", &[4], F32, 0);
    assert!(Gguf::from_bytes(raw.clone().data(32, 16).0, "unpadded").is_ok());
    assert!(Gguf::from_bytes(raw.clone().data(32, 32).0, "padded").is_ok());
    check(raw.data(32, 33), &["97", "96"]);
}

#[test]
fn every_cut_of_a_file_is_an_error() {
    let raw = Raw::new(3, 2, 3)
        .key_u32("a.b", 1)
        .key_array("words", 8, 2)
        .string(b"one")
        .string(b"")
        .key_array("n", 6, 2)
        .u64(0)
        .tensor("a", &[4], F32, 0)
        .tensor("b", &[32, 2], Q4_0, 32)
        .data(32, 32 + 36);
    assert!(Gguf::from_bytes(raw.0.clone(), "whole").is_ok());
    for n in 0..raw.0.len() {
        check(Raw(raw.0[..n].to_vec()), &[]);
    }
}
