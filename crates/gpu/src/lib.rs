//! The GPU device: WGSL kernels on whatever adapter `wgpu` finds (Vulkan, Metal, DX12).
//!
//! Kernels need nothing beyond the base of WebGPU: 8 storage buffers, bindings of 128 MiB, 16 KiB of
//! workgroup memory, 256 invocations, no subgroups, no 16-bit floats. Where an adapter has subgroups, sums of
//! rows run among their invocations, with equal bits. Shapes are parameters of a kernel; number types and tile
//! sizes are what it is generated for.

mod adapter;
mod agree;
mod cache;
mod compile;
mod decode;
mod device;
mod draft;
mod fold;
mod format;
mod kernels;
mod module;
mod program;
mod shared;
mod states;
mod store;
mod transfer;

pub use adapter::{AdapterSummary, OpenError, adapters};
pub use device::{GpuDevice, GpuOptions};
