//! firth: quant.
