//! What can be said on the command line. Every flag also as `FIRTH_<FLAG>`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use firth::{Normalize, Pooling};

/// Runs language models from GGUF files.
#[derive(Parser)]
#[command(name = "firth", version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// One answer, streamed; without MODEL the small bundled model
    Run(Run),
    /// A conversation in the terminal; /help lists what can be done there
    Chat(Chat),
    /// Answers over HTTP, in the shapes of OpenAI, Anthropic, llama-server and Ollama
    Serve(Box<Serve>),
    /// Runs a generation that `firth serve --record` recorded, and says whether the answer is the same
    Replay(Replay),
    /// Prefill and decode rates, and the share of this machine's ceilings
    Bench(Bench),
    /// Embeddings of texts, or of pairs the scores of a classifier
    Embed(Embed),
    /// f32 logits [n][vocab] of given ids, little-endian
    Logits(Logits),
    /// Runs the cut law on this machine and this model
    Check(Check),
    /// Perplexity of a text
    Perplexity(Perplexity),
    /// Token ids of a text
    Tokenize(Tokenize),
    /// Text of token ids (a JSON array, or numbers, on stdin)
    Detokenize(Detokenize),
    /// Metadata, tensors, and whether firth runs the file
    Inspect(Inspect),
    /// Fetches a model from the hub of Hugging Face; goes on where it was cut
    Pull(Pull),
    /// Models on this machine, by the names that commands take
    List(List),
    /// Writes a checkpoint in safetensors as a GGUF file
    Convert(Convert),
    /// A model file in another type
    Quantize(Quantize),
    /// What each weight is multiplied with over a text, for quantize --imatrix
    Imatrix(Imatrix),
    /// Devices, or with --plan what would lie where
    Devices(Devices),
}

/// Type of keys and values.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(missing_docs)]
pub enum Kv {
    F16,
    F32,
    #[value(name = "q8_0")]
    Q8_0,
}

/// What all commands on a model share.
#[derive(Args, Clone)]
pub struct Common {
    /// Where to run: cpu, gpu, or gpu:N as `firth devices` numbers them
    #[arg(long, env = "FIRTH_DEVICE", default_value = "cpu")]
    pub device: String,
    /// Layers on the GPU, counted from the last; the others and the embedding stay on the CPU
    #[arg(long, env = "FIRTH_GPU_LAYERS")]
    pub gpu_layers: Option<usize>,
    /// Layers whose experts stay on the CPU, counted from the first
    #[arg(long, env = "FIRTH_CPU_EXPERTS", default_value_t = 0)]
    pub cpu_experts: usize,
    /// Threads; by default the smallest of affinity, cgroup quota and physical cores
    #[arg(short, long, env = "FIRTH_THREADS")]
    pub threads: Option<usize>,
    /// Leave weights in the mapped file, laid out anew at each use: slower, the same tokens, for models larger than
    /// memory; CPU only
    #[arg(long, env = "FIRTH_MAP")]
    pub map: bool,
    /// Type of keys and values
    #[arg(long, env = "FIRTH_KV", value_enum, default_value = "f16")]
    pub kv: Kv,
    /// Tokens of a sequence; the model's own by default
    #[arg(long, env = "FIRTH_CTX")]
    pub ctx: Option<usize>,
    /// Rows of a step at most
    #[arg(long, env = "FIRTH_BATCH", default_value_t = 512)]
    pub batch: usize,
    /// Memory that everything may take: bytes, or with K, M, G
    #[arg(long, env = "FIRTH_MAX_MEMORY", value_parser = bytes)]
    pub max_memory: Option<u64>,
    /// Memory of cached prefixes; a quarter of what is free, at most 8G, by default
    #[arg(long, env = "FIRTH_CACHE_MEMORY", value_parser = bytes)]
    pub cache_memory: Option<u64>,
    /// Sets a metadata key: KEY=TYPE:VALUE with TYPE int, float, bool or str
    #[arg(long, env = "FIRTH_OVERRIDE_KV")]
    pub override_kv: Vec<String>,
    /// Say more: error, warn, info, debug or trace
    #[arg(long, env = "FIRTH_LOG", default_value = "warn")]
    pub log: String,
}

/// Sampling.
#[derive(Args, Clone)]
pub struct Sampling {
    /// Temperature, 0 for the likeliest token
    #[arg(long, env = "FIRTH_TEMP")]
    pub temp: Option<f32>,
    /// Candidates kept, 0 for all
    #[arg(long, env = "FIRTH_TOP_K")]
    pub top_k: Option<u32>,
    /// Probability mass kept
    #[arg(long, env = "FIRTH_TOP_P")]
    pub top_p: Option<f32>,
    /// Least probability kept, as a share of the best
    #[arg(long, env = "FIRTH_MIN_P")]
    pub min_p: Option<f32>,
    /// Seed; random by default, for `serve` a new one for each request that names none
    #[arg(long, env = "FIRTH_SEED")]
    pub seed: Option<u64>,
    /// Factor against repetition, 1 for none
    #[arg(long, env = "FIRTH_REPEAT_PENALTY")]
    pub repeat_penalty: Option<f32>,
    /// Penalty for each occurrence
    #[arg(long, env = "FIRTH_FREQUENCY_PENALTY")]
    pub frequency_penalty: Option<f32>,
    /// Penalty for any occurrence
    #[arg(long, env = "FIRTH_PRESENCE_PENALTY")]
    pub presence_penalty: Option<f32>,
    /// Last tokens that penalties look at, prompt included
    #[arg(long, env = "FIRTH_REPEAT_LAST_N")]
    pub repeat_last_n: Option<u32>,
    /// Penalty on going on with a repetition, 0 for none (DRY)
    #[arg(long, env = "FIRTH_DRY_MULTIPLIER")]
    pub dry_multiplier: Option<f32>,
    /// Growth of that penalty with each token of the repetition
    #[arg(long, env = "FIRTH_DRY_BASE")]
    pub dry_base: Option<f32>,
    /// Repetitions below this length are free
    #[arg(long, env = "FIRTH_DRY_ALLOWED_LENGTH")]
    pub dry_allowed_length: Option<u32>,
    /// Last tokens that DRY looks at, 0 for none
    #[arg(long, env = "FIRTH_DRY_PENALTY_LAST_N")]
    pub dry_penalty_last_n: Option<u32>,
    /// Text that repetitions do not reach over, in place of the defaults; `none` for nothing; may be given again
    #[arg(long, env = "FIRTH_DRY_SEQUENCE_BREAKER", value_name = "TEXT")]
    pub dry_sequence_breaker: Vec<String>,
    /// Probability mass of the typical tokens, 1 for all
    #[arg(long, visible_alias = "typical-p", env = "FIRTH_TYPICAL")]
    pub typical: Option<f32>,
    /// Standard deviations below the best logit that are kept, 0 for all
    #[arg(long, visible_alias = "top-n-sigma", env = "FIRTH_TOP_NSIGMA")]
    pub top_nsigma: Option<f32>,
    /// How often likely tokens but the last of them are dropped (XTC)
    #[arg(long, env = "FIRTH_XTC_PROBABILITY")]
    pub xtc_probability: Option<f32>,
    /// From which probability on a token is likely; above 0.5 for never
    #[arg(long, env = "FIRTH_XTC_THRESHOLD")]
    pub xtc_threshold: Option<f32>,
    /// How far the temperature follows the entropy up and down, 0 for not
    #[arg(long, env = "FIRTH_DYNATEMP_RANGE")]
    pub dynatemp_range: Option<f32>,
    /// Power of the entropy in that
    #[arg(long, env = "FIRTH_DYNATEMP_EXP")]
    pub dynatemp_exp: Option<f32>,
    /// Keeps the surprise near a target in place of other samplers: 1 or 2, 0 for not
    #[arg(long, env = "FIRTH_MIROSTAT", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub mirostat: Option<u8>,
    /// Mirostat's target, in bits
    #[arg(long, env = "FIRTH_MIROSTAT_ENT")]
    pub mirostat_ent: Option<f32>,
    /// Mirostat's learning rate
    #[arg(long, env = "FIRTH_MIROSTAT_LR")]
    pub mirostat_lr: Option<f32>,
    /// Probability near which tokens are drawn, where --samplers name adaptive_p; below 0 for not
    #[arg(long, env = "FIRTH_ADAPTIVE_TARGET")]
    pub adaptive_target: Option<f32>,
    /// How long past draws are remembered for that, 0 to 0.99
    #[arg(long, env = "FIRTH_ADAPTIVE_DECAY")]
    pub adaptive_decay: Option<f32>,
    /// The samplers in their order, joined by `;`
    #[arg(long, env = "FIRTH_SAMPLERS", value_name = "NAMES", conflicts_with = "sampler_seq")]
    pub samplers: Option<String>,
    /// The same by letters, as edskypmxt
    #[arg(long, visible_alias = "sampling-seq", env = "FIRTH_SAMPLER_SEQ", value_name = "LETTERS")]
    pub sampler_seq: Option<String>,
    /// Text that ends the answer; may be given again
    #[arg(long, env = "FIRTH_STOP")]
    pub stop: Vec<String>,
    /// Go on past end tokens
    #[arg(long, env = "FIRTH_IGNORE_EOS")]
    pub ignore_eos: bool,
}

/// How drafts are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Spec {
    None,
    Auto,
    Mtp,
    Ngram,
    Draft,
}

/// Speculation: it changes the time that an answer takes, never its text.
#[derive(Args, Clone)]
pub struct Speculation {
    /// Who guesses tokens ahead: auto takes the model's own head where the file has one
    #[arg(long, env = "FIRTH_SPEC", value_enum, default_value = "auto")]
    pub spec: Spec,
    /// Tokens guessed at once at most
    #[arg(long, env = "FIRTH_SPEC_MAX", default_value_t = 3)]
    pub spec_max: usize,
    /// A smaller model of the same vocabulary that guesses; implies --spec draft
    #[arg(long, env = "FIRTH_DRAFT", value_name = "MODEL")]
    pub draft: Option<String>,
}

/// What all commands share that let a model answer.
#[derive(Args, Clone)]
pub struct Talk {
    /// Another chat template
    #[arg(long, env = "FIRTH_CHAT_TEMPLATE")]
    pub chat_template: Option<PathBuf>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub speculation: Speculation,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub sampling: Sampling,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `firth run`.
#[derive(Args)]
pub struct Run {
    /// MODEL PROMPT, or PROMPT alone for the bundled model
    #[arg(num_args = 0..=2, value_name = "[MODEL] [PROMPT]")]
    pub words: Vec<String>,
    /// Reads the prompt from a file
    #[arg(short, long)]
    pub file: Option<PathBuf>,
    /// Tokens at most
    #[arg(short = 'n', long = "n", env = "FIRTH_N")]
    pub n: Option<usize>,
    /// The prompt as it is, without a chat template
    #[arg(long, env = "FIRTH_RAW")]
    pub raw: bool,
    /// An answer that is JSON of this schema
    #[arg(long, env = "FIRTH_JSON_SCHEMA", value_name = "FILE", conflicts_with = "grammar")]
    pub json_schema: Option<PathBuf>,
    /// An answer of this grammar: GBNF, or Lark in a file that ends in .lark
    #[arg(long, env = "FIRTH_GRAMMAR", value_name = "FILE")]
    pub grammar: Option<PathBuf>,
    /// One JSON object at the end in place of the text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub talk: Talk,
}

/// `firth chat`.
#[derive(Args)]
pub struct Chat {
    /// The model; the bundled one by default
    pub model: Option<String>,
    /// Text that the conversation begins with
    #[arg(long, env = "FIRTH_SYSTEM", value_name = "TEXT")]
    pub system: Option<String>,
    /// Tokens of an answer at most
    #[arg(short = 'n', long = "n", env = "FIRTH_N")]
    pub n: Option<usize>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub talk: Talk,
}

/// `firth serve`.
#[derive(Args)]
pub struct Serve {
    /// The model; the bundled one by default
    pub model: Option<String>,
    /// Address to listen on
    #[arg(long, env = "FIRTH_HOST", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 for any that is free
    #[arg(long, env = "FIRTH_PORT", default_value_t = 8080)]
    pub port: u16,
    /// Requests at work at once
    #[arg(long, env = "FIRTH_PARALLEL", default_value_t = 4)]
    pub parallel: usize,
    /// Requests that may wait besides; more are told to come again later
    #[arg(long, env = "FIRTH_QUEUE", default_value_t = 256)]
    pub queue: usize,
    /// The name that clients see; the file's by default
    #[arg(long, env = "FIRTH_ALIAS", value_name = "NAME")]
    pub alias: Option<String>,
    /// A key that requests must show; may be given again
    #[arg(long, env = "FIRTH_API_KEY", value_name = "KEY")]
    pub api_key: Vec<String>,
    /// A file with a key on each line
    #[arg(long, env = "FIRTH_API_KEY_FILE", value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Answers over TLS with this chain of certificates, in PEM
    #[arg(long, env = "FIRTH_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert, in PEM
    #[arg(long, env = "FIRTH_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Lets web pages of other origins ask
    #[arg(long, env = "FIRTH_CORS")]
    pub cors: bool,
    /// Tokens of thoughts at most, where a request does not say; -1 for no limit
    #[arg(long, env = "FIRTH_REASONING_BUDGET", value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub reasoning_budget: i64,
    /// Text that ends thoughts which have reached their limit, before the model's own mark
    #[arg(long, env = "FIRTH_REASONING_BUDGET_MESSAGE", value_name = "TEXT", default_value = "")]
    pub reasoning_budget_message: String,
    /// What names of metrics begin with, such as llamacpp or vllm
    #[arg(long, env = "FIRTH_METRICS_PREFIX", value_name = "NAME", default_value = "firth")]
    pub metrics_prefix: String,
    /// Folder of slot files; without it slots are neither saved nor restored
    #[arg(long, env = "FIRTH_SLOT_SAVE_PATH", value_name = "FOLDER")]
    pub slot_save_path: Option<PathBuf>,
    /// Folder that keeps cached prefixes for the next start
    #[arg(long, env = "FIRTH_CACHE_DIR", value_name = "FOLDER")]
    pub cache_dir: Option<PathBuf>,
    /// Folder into which every generation is recorded, for `firth replay`
    #[arg(long, env = "FIRTH_RECORD", value_name = "FOLDER")]
    pub record: Option<PathBuf>,
    /// Seconds for what is under way when the server is told to end
    #[arg(long, env = "FIRTH_GRACE", default_value_t = 10)]
    pub grace: u64,
    /// How rows become an embedding: none, mean, cls, last or rank; as the file says by default
    #[arg(long, env = "FIRTH_POOLING", value_parser = pooling)]
    pub pooling: Option<Pooling>,
    /// Seconds of silence after which a stream shows that it lives; 0 for never
    #[arg(long, env = "FIRTH_PING", default_value_t = 30)]
    pub ping: u64,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub talk: Talk,
}

/// `firth replay`.
#[derive(Args)]
pub struct Replay {
    /// The record
    pub file: PathBuf,
    /// The model; the bundled one by default
    pub model: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `firth bench`.
#[derive(Args)]
pub struct Bench {
    /// The model; the bundled one by default
    pub model: Option<String>,
    /// Prompt tokens
    #[arg(short = 'p', default_value_t = 512)]
    pub prompt: usize,
    /// Generated tokens
    #[arg(short = 'n', default_value_t = 128)]
    pub n: usize,
    /// Repetitions
    #[arg(short = 'r', default_value_t = 5)]
    pub repeat: usize,
    /// Sequences that decode together; the decode rate counts the tokens of all
    #[arg(long, default_value_t = 1)]
    pub sequences: usize,
    /// Time per op
    #[arg(long)]
    pub profile: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `firth logits`.
#[derive(Args)]
pub struct Logits {
    /// The model
    pub model: String,
    /// A JSON array of ids
    #[arg(long)]
    pub tokens: PathBuf,
    /// Where the logits go
    #[arg(long)]
    pub out: PathBuf,
    /// Step sizes, the last repeats
    #[arg(long, value_delimiter = ',')]
    pub cuts: Vec<usize>,
    /// Other sequences that decode in the same steps
    #[arg(long, default_value_t = 0)]
    pub mates: usize,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// How embeddings are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum EmbedOutput {
    Json,
    Raw,
}

/// `firth embed`.
#[derive(Args)]
pub struct Embed {
    /// The model
    pub model: String,
    /// The text; each line of stdin is one where neither this nor a file is given
    #[arg(short, long, conflicts_with = "file")]
    pub prompt: Option<String>,
    /// Reads the text from a file
    #[arg(short, long)]
    pub file: Option<PathBuf>,
    /// How rows become one: none, mean, cls, last or rank; as the file says by default
    #[arg(long, env = "FIRTH_POOLING", value_parser = pooling)]
    pub pooling: Option<Pooling>,
    /// How embeddings are scaled: none, l1, l2, max (to 32767), or the p of a norm
    #[arg(long, env = "FIRTH_NORMALIZE", default_value = "l2", value_parser = normalize)]
    pub normalize: Normalize,
    /// The first numbers alone, for models that were trained for that
    #[arg(long, env = "FIRTH_DIMENSIONS", value_name = "N")]
    pub dimensions: Option<usize>,
    /// JSON lines, or raw f32, little-endian
    #[arg(long, value_enum, default_value = "json")]
    pub output: EmbedOutput,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

fn pooling(name: &str) -> Result<Pooling, String> {
    Pooling::by_name(name).ok_or_else(|| "expected none, mean, cls, last or rank".into())
}

fn normalize(name: &str) -> Result<Normalize, String> {
    Normalize::by_name(name).ok_or_else(|| "expected none, l1, l2, max or a number".into())
}

/// `firth check`.
#[derive(Args)]
pub struct Check {
    /// The model; the bundled one by default
    pub model: Option<String>,
    /// Tokens of the sequence
    #[arg(short = 'n', default_value_t = 96)]
    pub n: usize,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `firth perplexity`.
#[derive(Args)]
pub struct Perplexity {
    /// The model
    pub model: String,
    /// The text
    #[arg(short, long)]
    pub file: PathBuf,
    /// Tokens of a chunk
    #[arg(short = 'c', long = "chunk", default_value_t = 512)]
    pub c: usize,
    /// Chunks at most
    #[arg(long)]
    pub chunks: Option<usize>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `firth imatrix`.
#[derive(Args)]
pub struct Imatrix {
    /// The model
    pub model: String,
    /// The text
    #[arg(short, long)]
    pub file: PathBuf,
    /// The matrix to write
    #[arg(short, long, default_value = "imatrix.gguf")]
    pub output: PathBuf,
    /// Tokens of a chunk
    #[arg(short = 'c', long = "chunk", default_value_t = 512)]
    pub c: usize,
    /// Chunks at most
    #[arg(long)]
    pub chunks: Option<usize>,
    /// An entry for the output matrix, too
    #[arg(long)]
    pub process_output: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// `firth tokenize`.
#[derive(Args)]
pub struct Tokenize {
    /// The model
    pub model: String,
    /// The text; stdin by default
    pub text: Option<String>,
    /// Adds the model's own start and end
    #[arg(long)]
    pub bos: bool,
    /// Reads control tokens in the text
    #[arg(long)]
    pub special: bool,
    /// Prints a JSON array
    #[arg(long)]
    pub ids: bool,
    /// Sets a metadata key: KEY=TYPE:VALUE
    #[arg(long)]
    pub override_kv: Vec<String>,
}

/// `firth detokenize`.
#[derive(Args)]
pub struct Detokenize {
    /// The model
    pub model: String,
    /// Prints control tokens too
    #[arg(long)]
    pub special: bool,
}

/// `firth inspect`.
#[derive(Args)]
pub struct Inspect {
    /// The model
    pub model: String,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// `firth pull`.
#[derive(Args)]
pub struct Pull {
    /// USER/REPO, or USER/REPO:QUANT such as Q8_0; without QUANT Q4_K_M where it is there
    #[arg(value_name = "USER/REPO[:QUANT]")]
    pub name: String,
}

/// `firth list`.
#[derive(Args)]
pub struct List {
    /// One JSON array
    #[arg(long)]
    pub json: bool,
}

/// `firth convert`.
#[derive(Args)]
pub struct Convert {
    /// The folder with config.json, the safetensors files and tokenizer.json
    #[arg(value_name = "FOLDER")]
    pub folder: String,
    /// The new file
    #[arg(short, long, value_name = "OUT")]
    pub output: String,
    /// A mix such as Q4_K_M, Q8_0 or F16; by default the type that most weights have
    #[arg(long = "type", value_name = "TYPE", env = "FIRTH_TYPE")]
    pub file_type: Option<String>,
    /// Sets a metadata key: KEY=TYPE:VALUE with TYPE int, float, bool or str
    #[arg(long, env = "FIRTH_OVERRIDE_KV")]
    pub override_kv: Vec<String>,
    /// Threads; by default the smallest of affinity, cgroup quota and physical cores
    #[arg(short, long, env = "FIRTH_THREADS")]
    pub threads: Option<usize>,
}

/// `firth quantize`.
#[derive(Args)]
pub struct Quantize {
    /// The model; of a split one any file
    #[arg(value_name = "IN")]
    pub input: String,
    /// The new file
    #[arg(value_name = "OUT")]
    pub output: String,
    /// A mix such as Q4_K_M, Q8_0 or F16, by name or number
    #[arg(value_name = "TYPE")]
    pub file_type: String,
    /// NAME=TYPE: tensors whose name the regular expression NAME is found in get TYPE; the first that matches decides
    #[arg(long, env = "FIRTH_TENSOR_TYPE")]
    pub tensor_type: Vec<String>,
    /// Type of the output matrix
    #[arg(long, env = "FIRTH_OUTPUT_TENSOR_TYPE")]
    pub output_tensor_type: Option<String>,
    /// Type of the token embedding
    #[arg(long, env = "FIRTH_TOKEN_EMBEDDING_TYPE")]
    pub token_embedding_type: Option<String>,
    /// One type for all that is quantised, no mix
    #[arg(long, env = "FIRTH_PURE")]
    pub pure: bool,
    /// Leaves the output matrix as it is
    #[arg(long, env = "FIRTH_LEAVE_OUTPUT_TENSOR")]
    pub leave_output_tensor: bool,
    /// Takes tensors that are quantised already; each pass loses
    #[arg(long, env = "FIRTH_ALLOW_REQUANTIZE")]
    pub allow_requantize: bool,
    /// As many files as the input has
    #[arg(long, env = "FIRTH_KEEP_SPLIT")]
    pub keep_split: bool,
    /// An importance matrix, a GGUF file of sums of squares
    #[arg(long, env = "FIRTH_IMATRIX")]
    pub imatrix: Option<PathBuf>,
    /// Uses only the matrix's entries whose name has this part
    #[arg(long, env = "FIRTH_INCLUDE_WEIGHTS", conflicts_with = "exclude_weights")]
    pub include_weights: Vec<String>,
    /// Uses only the matrix's entries whose name lacks this part
    #[arg(long, env = "FIRTH_EXCLUDE_WEIGHTS")]
    pub exclude_weights: Vec<String>,
    /// Says what each tensor would become, and writes nothing
    #[arg(long, env = "FIRTH_DRY_RUN")]
    pub dry_run: bool,
    /// Sets a metadata key: KEY=TYPE:VALUE with TYPE int, float, bool or str
    #[arg(long, env = "FIRTH_OVERRIDE_KV")]
    pub override_kv: Vec<String>,
    /// Threads; by default the smallest of affinity, cgroup quota and physical cores
    #[arg(short, long, env = "FIRTH_THREADS")]
    pub threads: Option<usize>,
}

/// `firth devices`.
#[derive(Args)]
pub struct Devices {
    /// Plans this model
    #[arg(long, value_name = "MODEL")]
    pub plan: Option<String>,
    /// Longest draft to plan for; 0 for none
    #[arg(long)]
    pub spec_max: Option<usize>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub common: Common,
}

/// Bytes, with K, M or G for powers of 1024.
fn bytes(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.trim_end_matches(['B', 'b']).char_indices().last() {
        Some((i, 'K' | 'k')) => (&text[..i], 10),
        Some((i, 'M' | 'm')) => (&text[..i], 20),
        Some((i, 'G' | 'g')) => (&text[..i], 30),
        _ => (text, 0),
    };
    let n: u64 = digits.trim().parse().map_err(|_| format!("`{text}` is no size; say 512M or 8G"))?;
    n.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(bytes("512"), Ok(512));
        assert_eq!(bytes("2K"), Ok(2048));
        assert_eq!(bytes("3GB"), Ok(3 << 30));
        assert!(bytes("x").is_err());
        assert!(bytes("99999999999G").is_err());
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
