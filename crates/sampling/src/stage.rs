//! The stages of sampling by name, and their order.

/// A stage. The order of stages is a request's to choose; the draw comes last whatever it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Penalties on recent tokens.
    Penalties,
    /// Penalty on tokens that would go on with a repetition.
    Dry,
    /// Keeps what lies few standard deviations below the best.
    TopNSigma,
    /// Keeps the best few.
    TopK,
    /// Keeps what is about as surprising as the average.
    Typical,
    /// Keeps the best that together have a share of the probability.
    TopP,
    /// Keeps what has a share of the best one's probability.
    MinP,
    /// Now and then drops all likely ones but the last of them.
    Xtc,
    /// Temperature, fixed or by entropy.
    Temperature,
    /// Draws near a target probability; the place in the order does not matter.
    AdaptiveP,
}

/// llama.cpp's default order.
pub const DEFAULT_ORDER: [Stage; 9] = [
    Stage::Penalties,
    Stage::Dry,
    Stage::TopNSigma,
    Stage::TopK,
    Stage::Typical,
    Stage::TopP,
    Stage::MinP,
    Stage::Xtc,
    Stage::Temperature,
];

/// Stage, letter, name, and other names.
const NAMES: [(Stage, char, &str, &[&str]); 10] = [
    (Stage::Penalties, 'e', "penalties", &[]),
    (Stage::Dry, 'd', "dry", &[]),
    (Stage::TopNSigma, 's', "top_n_sigma", &["top-n-sigma", "topnsigma"]),
    (Stage::TopK, 'k', "top_k", &["top-k", "topk"]),
    (Stage::Typical, 'y', "typ_p", &["typical_p", "typical", "typical-p", "typ-p", "typp", "typ"]),
    (Stage::TopP, 'p', "top_p", &["top-p", "topp", "nucleus"]),
    (Stage::MinP, 'm', "min_p", &["min-p", "minp"]),
    (Stage::Xtc, 'x', "xtc", &[]),
    (Stage::Temperature, 't', "temperature", &["temp"]),
    (Stage::AdaptiveP, 'a', "adaptive_p", &["adaptive-p", "adaptivep"]),
];

/// A name or letter that is no stage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no sampler; known are {}", known())]
pub struct StageError {
    /// The name or letter.
    pub found: String,
}

fn known() -> String {
    NAMES.map(|(_, letter, name, _)| format!("{name} ({letter})")).join(", ")
}

impl Stage {
    /// The name in lists of samplers.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|n| n.0 == self).expect("each stage has a row").2
    }

    /// Stages by their names, joined by `;`, in any case.
    ///
    /// # Errors
    /// The first name that is none.
    pub fn from_names(list: &str) -> Result<Vec<Stage>, StageError> {
        let names = list.split(';').map(str::trim).filter(|n| !n.is_empty());
        names
            .map(|name| {
                let lower = name.to_lowercase();
                let named = NAMES.iter().find(|n| n.2 == lower || n.3.contains(&&*lower));
                named.map(|n| n.0).ok_or_else(|| StageError { found: name.to_owned() })
            })
            .collect()
    }

    /// Stages by their letters, as `edskypmxt`.
    ///
    /// # Errors
    /// The first letter that is none.
    pub fn from_letters(letters: &str) -> Result<Vec<Stage>, StageError> {
        let stage = |c: char| {
            let named = NAMES.iter().find(|n| n.1 == c).map(|n| n.0);
            named.ok_or_else(|| StageError { found: c.to_string() })
        };
        letters.trim().chars().map(stage).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_has_two_spellings() {
        let names = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
        assert_eq!(Stage::from_names(names).unwrap(), DEFAULT_ORDER);
        assert_eq!(Stage::from_letters("edskypmxt").unwrap(), DEFAULT_ORDER);
        assert_eq!(DEFAULT_ORDER.map(Stage::name).join(";"), names);
        assert_eq!(Stage::from_names(" Top-K; nucleus ;").unwrap(), [Stage::TopK, Stage::TopP]);
        assert_eq!(Stage::from_names("top_q").unwrap_err().found, "top_q");
        assert!(
            Stage::from_letters("kq").unwrap_err().to_string().starts_with("`q` is no sampler; known are")
        );
    }
}
