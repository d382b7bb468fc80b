//! A model written out in f64, from its published formulas, for what no fixture reaches.

use firth_gguf::Gguf;

type Row = Vec<f64>;

/// MiniMax M3: first layer dense, the others with experts and blocks of keys that each key head chooses.
pub struct MinimaxM3<'a> {
    /// The file.
    pub file: &'a Gguf,
    /// Query heads.
    pub n_heads: usize,
    /// Key heads, as many as the indexer's.
    pub kv_heads: usize,
    /// Numbers of a head, the indexer's too.
    pub head_dim: usize,
    /// Of which so many are turned.
    pub n_rot: usize,
}

impl MinimaxM3<'_> {
    /// Logits `[tokens][vocab]` where each key head reads `n` blocks of `ratio` keys, always the last `local`.
    pub fn logits(&self, tokens: &[u32], ratio: usize, n: usize, local: usize) -> Vec<f32> {
        let embeddings = self.rows("token_embd.weight");
        let mut x: Vec<Row> = tokens.iter().map(|t| embeddings[*t as usize].clone()).collect();
        let layers = self.file.metadata().require_u32("minimax-m3.block_count").expect("a key");
        for i in 0..layers as usize {
            let blk = |name: &str| format!("blk.{i}.{name}");
            let h: Vec<Row> = x.iter().map(|x| self.norm(x, &blk("attn_norm.weight"))).collect();
            let blocks = (i > 0).then_some((ratio, n, local));
            for (x, y) in x.iter_mut().zip(self.attention(&h, &blk, blocks)) {
                add(x, &y, 1.0);
            }
            for x in &mut x {
                let h = self.norm(x, &blk("ffn_norm.weight"));
                let y = if i == 0 {
                    self.unit(&h, |m| blk(&format!("ffn_{m}.weight")), 0)
                } else {
                    self.experts(&h, &blk)
                };
                add(x, &y, 1.0);
            }
        }
        let out = x.iter().flat_map(|x| self.product(&self.norm(x, "output_norm.weight"), "output", 0));
        out.map(|z| z as f32).collect()
    }

    fn attention(
        &self,
        h: &[Row],
        blk: &dyn Fn(&str) -> String,
        blocks: Option<(usize, usize, usize)>,
    ) -> Vec<Row> {
        let heads = |name: &str, norm: Option<&str>| -> Vec<Vec<Row>> {
            let of_row = |(p, h): (usize, &Row)| {
                let y = self.product(h, &blk(name), 0);
                let head = |x: &[f64]| match norm {
                    Some(norm) => self.turned(&self.norm(x, &blk(norm)), p),
                    None => x.to_vec(),
                };
                y.chunks(self.head_dim).map(head).collect()
            };
            h.iter().enumerate().map(of_row).collect()
        };
        let (q, k) =
            (heads("attn_q", Some("attn_q_norm.weight")), heads("attn_k", Some("attn_k_norm.weight")));
        let v = heads("attn_v", None);
        let index = blocks.map(|_| {
            (
                heads("indexer.q_proj", Some("indexer.q_norm.weight")),
                heads("indexer.k_proj", Some("indexer.k_norm.weight")),
            )
        });
        let group = self.n_heads / self.kv_heads;
        let row = |p: usize| {
            let mut o = Vec::new();
            for head in 0..self.n_heads {
                let kv = head / group;
                let seen: Vec<usize> = match (&index, blocks) {
                    (Some((iq, ik)), Some(blocks)) => chosen(&iq[p][kv], |j| &ik[j][0], p, blocks),
                    _ => (0..=p).collect(),
                };
                let scale = 1.0 / (self.head_dim as f64).sqrt();
                let w = softmax(seen.iter().map(|&j| scale * dot(&q[p][head], &k[j][kv])).collect());
                let mut y = vec![0.0; self.head_dim];
                seen.iter().zip(w).for_each(|(&j, w)| add(&mut y, &v[j][kv], w));
                o.extend(y);
            }
            self.product(&o, &blk("attn_output"), 0)
        };
        (0..h.len()).map(row).collect()
    }

    /// Two experts by the sigmoid of their logits, chosen with a bias, and the shared one.
    fn experts(&self, h: &[f64], blk: &dyn Fn(&str) -> String) -> Row {
        let p: Row = self.product(h, &blk("ffn_gate_inp"), 0).iter().map(|l| sigmoid(*l)).collect();
        let bias = self.values(&blk("exp_probs_b.bias"));
        let mut order: Vec<usize> = (0..p.len()).collect();
        order.sort_by(|&a, &b| (p[b] + bias[b]).total_cmp(&(p[a] + bias[a])));
        let mut y = self.unit(h, |m| blk(&format!("ffn_{m}_shexp.weight")), 0);
        for &e in &order[..2] {
            add(&mut y, &self.unit(h, |m| blk(&format!("ffn_{m}_exps.weight")), e), p[e]);
        }
        y
    }

    /// SwiGLU of gpt-oss with its limit of 7.
    fn unit(&self, h: &[f64], name: impl Fn(&str) -> String, e: usize) -> Row {
        let product = |m: &str, x: &[f64]| self.product(x, name(m).trim_end_matches(".weight"), e);
        let (gate, up) = (product("gate", h), product("up", h));
        let one = |(g, u): (&f64, &f64)| {
            let g = g.min(7.0);
            g * sigmoid(1.702 * g) * (u.clamp(-7.0, 7.0) + 1.0)
        };
        product("down", &gate.iter().zip(&up).map(one).collect::<Row>())
    }

    /// Half-split pairs of the first numbers, turned by position.
    fn turned(&self, x: &[f64], p: usize) -> Row {
        let (mut y, half) = (x.to_vec(), self.n_rot / 2);
        for j in 0..half {
            let angle = p as f64 * 10000f64.powf(-2.0 * j as f64 / self.n_rot as f64);
            let (a, b) = (x[j], x[j + half]);
            (y[j], y[j + half]) = (a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos());
        }
        y
    }

    fn norm(&self, x: &[f64], weight: &str) -> Row {
        let by = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(1e-5f32)).sqrt();
        x.iter().zip(self.values(weight)).map(|(x, w)| x * by * w).collect()
    }

    /// Matrix `e` of `name.weight`, and `name.bias` where there is one.
    fn product(&self, x: &[f64], name: &str, e: usize) -> Row {
        let weight = format!("{name}.weight");
        let n = self.file.tensor(&weight).expect("a tensor").shape[1] as usize;
        let bias = format!("{name}.bias");
        let mut y = match self.file.tensor(&bias) {
            Some(_) => self.values(&bias),
            None => vec![0.0; n],
        };
        let all = self.values(&weight);
        for (y, w) in y.iter_mut().zip(all[e * n * x.len()..].chunks(x.len())) {
            *y += dot(w, x);
        }
        y
    }

    fn rows(&self, name: &str) -> Vec<Row> {
        let n = self.file.tensor(name).expect("a tensor").shape[0] as usize;
        self.values(name).chunks(n).map(<[f64]>::to_vec).collect()
    }

    fn values(&self, name: &str) -> Row {
        let t = self.file.tensor(name).unwrap_or_else(|| panic!("no `{name}`"));
        let mut out = vec![0.0; t.n_elements() as usize];
        firth_quant::decode(t.dtype, self.file.data(t), &mut out);
        out.into_iter().map(f64::from).collect()
    }
}

/// The keys at or before `p` that lie in the blocks with the largest product; the last blocks come first.
fn chosen<'a>(
    q: &[f64],
    key: impl Fn(usize) -> &'a Row,
    p: usize,
    (ratio, n, local): (usize, usize, usize),
) -> Vec<usize> {
    let last = p / ratio;
    let tokens = |b: usize| b * ratio..((b + 1) * ratio).min(p + 1);
    let score = |b: usize| match b + local > last {
        true => f64::INFINITY,
        false => tokens(b).map(|j| dot(q, key(j))).fold(f64::NEG_INFINITY, f64::max),
    };
    let mut order: Vec<usize> = (0..=last).collect();
    order.sort_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
    order.truncate(n);
    order.sort_unstable();
    order.into_iter().flat_map(tokens).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut [f64], y: &[f64], by: f64) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += by * y);
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softmax(x: Row) -> Row {
    let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Row = x.iter().map(|x| (x - top).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|e| e / sum).collect()
}
