//! Any bytes as blocks of each type: decoding is total, and what holds only finite values encodes again
//! unless its scale overflows.
#![no_main]

use firth_quant::{Dtype, EncodeError, can_encode, decode, encode, first_not_finite};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, bytes)) = bytes.split_first() else { return };
    let dtype = Dtype::ALL[usize::from(*first) % Dtype::ALL.len()];
    let n_blocks = bytes.len() / dtype.block_bytes();
    let bytes = &bytes[..n_blocks * dtype.block_bytes()];
    let mut values = vec![0.0; n_blocks * dtype.block_len()];
    decode(dtype, bytes, &mut values);
    let finite = first_not_finite(dtype, bytes).is_none() && values.iter().all(|v| v.is_finite());
    if can_encode(dtype) {
        let mut again = vec![0; bytes.len()];
        let encoded = encode(dtype, &values, &mut again);
        // -128 times the largest half needs a scale beyond it; nothing else is refused.
        let too_large = matches!(encoded, Err(EncodeError::TooLarge { .. }));
        assert!(encoded.is_ok() || too_large || !finite, "{}: {encoded:?}", dtype.name());
    }
});
