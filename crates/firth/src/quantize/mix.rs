//! Which type a tensor gets in a file of a given type: the tables of llama.cpp's quantiser, so that a file of ours and
//! one of theirs have the same types. A choice depends on names, shapes and metadata only.

use firth_gguf::{Gguf, KeyError, Metadata, TensorInfo, Value};
use firth_quant::Dtype;

use super::file_type::FileType;
use super::role::Role;

/// What the rules ask of a model.
pub(super) struct Facts {
    pub arch: String,
    /// Layers, those of drafting heads too.
    pub n_layers: usize,
    pub n_experts: u64,
    /// Query heads to a key head in the first layer; 0 where it has none.
    pub heads_per_kv: u32,
    pub n_values: usize,
    /// The embedding serves as output.
    pub tied: bool,
    /// Large models whose values deserve more.
    pub is_70b: bool,
    pub importance: bool,
}

impl Facts {
    pub(super) fn of(file: &Gguf, importance: bool) -> Result<Facts, KeyError> {
        let m = file.metadata();
        let arch = m.str("general.architecture")?.unwrap_or_default().to_owned();
        let key = |name: &str| format!("{arch}.{name}");
        let n_layers = m.u32(&key("block_count"))?.unwrap_or(0) as usize;
        let heads = first(m, &key("attention.head_count"))?.unwrap_or(0);
        let kv_heads = first(m, &key("attention.head_count_kv"))?.unwrap_or(heads);
        let is_70b = match arch.as_str() {
            "llama" => n_layers == 80 && heads != kv_heads,
            "deci" | "olmo" | "qwen2" => n_layers == 80,
            "jais2" => n_layers == 68,
            _ => false,
        };
        Ok(Facts {
            n_experts: m.u64(&key("expert_count"))?.unwrap_or(0),
            heads_per_kv: heads.checked_div(kv_heads).unwrap_or(0),
            n_values: file.tensors().iter().filter(|t| Role::of(&t.name).is_value_like()).count(),
            tied: file.tensor("output.weight").is_none(),
            is_70b,
            importance,
            n_layers,
            arch,
        })
    }
}

/// A number, or that of the first layer.
fn first(m: &Metadata, key: &str) -> Result<Option<u32>, KeyError> {
    match m.get(key) {
        Some(Value::Array(_)) => Ok(m.u32s(key)?.and_then(|v| v.first().copied())),
        _ => m.u32(key),
    }
}

/// The rules of a file type, walking over the tensors of a model in their order.
pub(super) struct Mix<'a> {
    facts: &'a Facts,
    t: FileType,
    /// What a tied embedding gets where the user chose a type for the output.
    output: Option<Dtype>,
    values: usize,
    downs: usize,
    gates: usize,
    ups: usize,
}

impl<'a> Mix<'a> {
    pub(super) fn new(facts: &'a Facts, t: FileType, output: Option<Dtype>) -> Mix<'a> {
        Mix { facts, t, output, values: 0, downs: 0, gates: 0, ups: 0 }
    }

    /// The type of the next tensor, before its shape is looked at.
    pub(super) fn choose(&mut self, tensor: &TensorInfo) -> Dtype {
        let (role, facts) = (Role::of(&tensor.name), self.facts);
        let (eight, eighth) = (facts.n_experts == 8, facts.n_layers / 8);
        let own = ["attn_q_a", "attn_q_b", "nextn.eh_proj"];
        if facts.arch == "glm5-next" && own.iter().any(|part| tensor.name.contains(part)) {
            return Dtype::Q8_0;
        }
        match role {
            Role::Output => self.output_type(tensor),
            Role::Embedding if facts.tied => self.output.unwrap_or_else(|| self.output_type(tensor)),
            Role::Embedding => self.embedding(),
            _ if self.t == FileType::MXFP4_MOE => self.mxfp4(role, tensor),
            _ if self.t.is_iq1_iq2() => self.small(role, eight, eighth),
            Role::Value | Role::Qkv | Role::KvB => self.value(eight),
            Role::Key if eight => Dtype::Q8_0,
            Role::Key | Role::Query => self.key_or_query(),
            Role::AttentionOutput => self.attention_output(eight),
            Role::Down => {
                let i = layer(facts, tensor, &mut self.downs);
                self.down(i, eight)
            }
            Role::Gate => {
                let i = layer(facts, tensor, &mut self.gates);
                self.gate_or_up(i)
            }
            Role::Up => {
                let i = layer(facts, tensor, &mut self.ups);
                self.gate_or_up(i)
            }
            Role::Other => self.t.base(),
        }
    }

    fn output_type(&self, tensor: &TensorInfo) -> Dtype {
        use FileType::*;
        let odd = !tensor.shape[0].is_multiple_of(self.t.base().block_len() as u64);
        match self.t {
            _ if odd || self.facts.arch == "falcon" => Dtype::Q8_0,
            Q8_0 | MXFP4_MOE => Dtype::Q8_0,
            IQ3_XXS => Dtype::Q5_K,
            t if t.is_iq1_iq2() => Dtype::Q5_K,
            _ => Dtype::Q6_K,
        }
    }

    fn embedding(&self) -> Dtype {
        use FileType::*;
        match self.t {
            Q2_0 | TQ1_0 | TQ2_0 => Dtype::Q4_K,
            IQ3_XXS | IQ2_S | IQ2_M => Dtype::IQ3_S,
            IQ2_XXS | IQ2_XS | IQ1_S | IQ1_M => Dtype::Q2_K,
            MXFP4_MOE => Dtype::Q8_0,
            t => t.base(),
        }
    }

    fn mxfp4(&self, role: Role, tensor: &TensorInfo) -> Dtype {
        let ffn = matches!(role, Role::Up | Role::Gate | Role::Down);
        let by_expert = tensor.dims()[2] > 1 && (ffn || self.facts.arch != "bailingmoe3");
        if by_expert { Dtype::MXFP4 } else { Dtype::Q8_0 }
    }

    /// The mixes of one and two bits.
    fn small(&mut self, role: Role, eight: bool, eighth: usize) -> Dtype {
        use FileType::*;
        let base = self.t.base();
        let larger = if matches!(self.t, IQ2_S | IQ2_M) { Dtype::IQ3_S } else { Dtype::Q2_K };
        match role {
            Role::Value | Role::Qkv | Role::KvB => {
                self.values += 1;
                let shared = self.facts.heads_per_kv >= 4 || self.facts.n_experts >= 4;
                if shared { Dtype::Q4_K } else { larger }
            }
            Role::Key if eight => Dtype::Q4_K,
            Role::AttentionOutput if eight => Dtype::Q5_K,
            Role::AttentionOutput => match self.t {
                IQ2_S | IQ2_M => Dtype::IQ3_S,
                IQ1_S | IQ1_M => Dtype::IQ2_XXS,
                _ => base,
            },
            Role::Down => {
                self.downs += 1;
                if self.downs <= eighth { larger } else { base }
            }
            _ => base,
        }
    }

    fn value(&mut self, eight: bool) -> Dtype {
        use FileType::*;
        let (i, base, shared) = (self.values, self.t.base(), self.facts.heads_per_kv >= 4);
        self.values += 1;
        let when = |yes: bool, larger: Dtype| if yes { larger } else { base };
        let dtype = match self.t {
            _ if eight => return Dtype::Q8_0,
            Q2_K => {
                if shared {
                    Dtype::Q4_K
                } else {
                    Dtype::Q3_K
                }
            }
            Q2_K_S | IQ3_S | IQ3_XS => when(shared, Dtype::Q4_K),
            Q3_K_M => {
                if i < 2 {
                    Dtype::Q5_K
                } else {
                    Dtype::Q4_K
                }
            }
            Q3_K_L => Dtype::Q5_K,
            Q4_K_S => when(i < 4, Dtype::Q5_K),
            Q4_K_M | Q5_K_M => when(more(i, self.facts.n_values), Dtype::Q6_K),
            IQ4_NL | IQ4_XS => when(shared, Dtype::Q5_K),
            IQ3_M => Dtype::Q4_K,
            IQ3_XXS if shared => Dtype::Q4_K,
            IQ3_XXS => when(!self.facts.importance, Dtype::IQ3_S),
            _ => base,
        };
        match dtype {
            Dtype::Q3_K | Dtype::Q4_K if self.facts.is_70b => Dtype::Q5_K,
            _ => dtype,
        }
    }

    fn key_or_query(&self) -> Dtype {
        match self.t {
            FileType::IQ3_XS => Dtype::IQ3_XXS,
            FileType::IQ3_XXS => Dtype::IQ2_S,
            t => t.base(),
        }
    }

    fn attention_output(&self, eight: bool) -> Dtype {
        use FileType::*;
        let base = self.t.base();
        if self.facts.arch == "falcon" {
            return if self.t == Q3_K_L { Dtype::Q4_K } else { base };
        }
        let small = matches!(
            self.t,
            Q2_K | Q3_K_S | Q3_K_M | Q4_K_S | Q4_K_M | IQ3_XXS | IQ3_XS | IQ3_S | IQ3_M | IQ4_NL | IQ4_XS
        );
        match self.t {
            _ if eight => {
                if small {
                    Dtype::Q5_K
                } else {
                    base
                }
            }
            Q2_K => Dtype::Q3_K,
            Q3_K_M | IQ3_M => Dtype::Q4_K,
            Q3_K_L => Dtype::Q5_K,
            IQ3_XXS => Dtype::IQ3_S,
            _ => base,
        }
    }

    fn down(&self, i: usize, eight: bool) -> Dtype {
        use FileType::*;
        let (n, base, falcon) = (self.facts.n_layers, self.t.base(), self.facts.arch == "falcon");
        let (first_eighth, first_16th, more) = (i < n / 8, i < n / 16, more(i, n));
        let when = |yes: bool, larger: Dtype| if yes { larger } else { base };
        match self.t {
            Q4_0 => when(self.facts.importance && first_eighth, Dtype::Q4_1),
            Q5_0 => when(self.facts.importance && first_eighth, Dtype::Q5_1),
            Q2_K => Dtype::Q3_K,
            Q2_K_S => when(first_eighth, Dtype::Q4_K),
            Q3_K_M if first_16th => Dtype::Q5_K,
            Q3_K_M => when(!falcon || more, Dtype::Q4_K),
            Q3_K_L => {
                if falcon {
                    Dtype::Q4_K
                } else {
                    Dtype::Q5_K
                }
            }
            Q4_K_S => when(!falcon && first_eighth, Dtype::Q5_K),
            Q4_K_M if falcon && first_16th => Dtype::Q6_K,
            Q4_K_M if falcon => when(more, Dtype::Q5_K),
            Q4_K_M | Q5_K_M => when(more, Dtype::Q6_K),
            IQ4_NL | IQ4_XS => when(!self.facts.importance && first_eighth, Dtype::Q5_K),
            IQ3_M => when(first_eighth || eight && more, Dtype::Q4_K),
            IQ3_XXS if self.facts.importance => base,
            IQ3_XXS => {
                if first_eighth {
                    Dtype::Q4_K
                } else {
                    Dtype::Q3_K
                }
            }
            _ => base,
        }
    }

    fn gate_or_up(&self, i: usize) -> Dtype {
        let n = self.facts.n_layers;
        let middle = i >= n / 8 && i < 7 * n / 8;
        if self.t == FileType::IQ3_XS && middle { Dtype::IQ3_XXS } else { self.t.base() }
    }
}

/// Whether layer `i` of `n` is of those that deserve more bits: the first and last eighth and every third between.
fn more(i: usize, n: usize) -> bool {
    let eighth = n / 8;
    i < eighth || i >= 7 * n / 8 || (i - eighth) % 3 == 2
}

/// The layer of a feed-forward tensor: how many of its role came before; with experts, whose layers have several, the
/// number in its name.
fn layer(facts: &Facts, tensor: &TensorInfo, counter: &mut usize) -> usize {
    let i = *counter;
    *counter += 1;
    if facts.n_experts > 1 { block(&tensor.name).unwrap_or(i) } else { i }
}

/// The number of a name's block.
pub(super) fn block(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}
