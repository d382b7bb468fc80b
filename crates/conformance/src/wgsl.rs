//! What every kernel of the GPU keeps to, read from its text: legal WGSL of the base language, and the limits that
//! every adapter has. No driver need be asked, and `wgpu` checks less.

use std::path::Path;

use naga::{AddressSpace, Module};

/// Storage buffers of a kernel, uniform buffers, bytes of workgroup memory, invocations of a workgroup.
const STORAGE: usize = 8;
const UNIFORM: usize = 12;
const WORKGROUP: u32 = 16 << 10;
const INVOCATIONS: u32 = 256;

/// What the base language has beyond nothing: halves packed in words.
const BASE: naga::valid::Capabilities = naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32;

/// What kernels for adapters with subgroups may use besides.
const SUBGROUPS: naga::valid::Capabilities = naga::valid::Capabilities::SUBGROUP;

/// What is wrong with a kernel's text.
pub fn audit(text: &str) -> Result<(), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    let flags = naga::valid::ValidationFlags::all();
    let capabilities = if text.contains("subgroup") { BASE | SUBGROUPS } else { BASE };
    let mut validator = naga::valid::Validator::new(flags, capabilities);
    validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
    validator.subgroup_operations(naga::valid::SubgroupOperationSet::all());
    validator.validate(&module).map_err(|e| e.emit_to_string(text))?;
    let bound =
        |f: &dyn Fn(AddressSpace) -> bool| module.global_variables.iter().filter(|(_, v)| f(v.space)).count();
    let storage = bound(&|s| matches!(s, AddressSpace::Storage { .. }));
    let uniform = bound(&|s| s == AddressSpace::Uniform);
    let workgroup = workgroup_bytes(&module);
    let [main] = &module.entry_points[..] else { return Err("not one entry point".into()) };
    let invocations: u32 = main.workgroup_size.iter().product();
    let over = storage > STORAGE || uniform > UNIFORM || workgroup > WORKGROUP || invocations > INVOCATIONS;
    match over {
        true => Err(format!(
            "{storage} storage and {uniform} uniform buffers, {workgroup} bytes of workgroup memory, {invocations} invocations"
        )),
        false => Ok(()),
    }
}

fn workgroup_bytes(module: &Module) -> u32 {
    let of_workgroup = module.global_variables.iter().filter(|(_, v)| v.space == AddressSpace::WorkGroup);
    of_workgroup.map(|(_, v)| module.types[v.ty].inner.size(module.to_ctx()).next_multiple_of(16)).sum()
}

/// Writes texts to the folder that `FIRTH_WGSL` names, for other compilers of WGSL.
pub fn dump(kernels: &[(&'static str, String)]) {
    let Some(dir) = std::env::var_os("FIRTH_WGSL") else { return };
    std::fs::create_dir_all(&dir).expect("a folder for texts");
    for (name, text) in kernels {
        let hash = text
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let path = Path::new(&dir).join(format!("{name}-{hash:016x}.wgsl"));
        std::fs::write(path, text).expect("a text is written");
    }
}
