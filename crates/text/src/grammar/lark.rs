//! Limits on grammars in Lark.

use super::GrammarError;
use super::compile::check_source;

/// Brackets in brackets.
const MAX_DEPTH: usize = 200;
/// Numbers in `{m,n}`; each is unrolled or costs a state.
const MAX_REPEAT: usize = 10_000;

/// Refuses a grammar that is too long, too deep, or repeats too often, before the library reads it.
pub(super) fn check(source: &str) -> Result<(), GrammarError> {
    check_source(source)?;
    let (mut depth, mut deepest) = (0usize, 0);
    for c in source.bytes() {
        match c {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'\n' => depth = depth.min(MAX_DEPTH),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    // Brackets in texts count, too: a grammar with hundreds of them open is none.
    if deepest > 2 * MAX_DEPTH {
        return Err(GrammarError::TooLarge { what: "brackets open", found: deepest, limit: 2 * MAX_DEPTH });
    }
    for (at, _) in source.match_indices('{') {
        let near = source.as_bytes()[at + 1..].iter().take(64).take_while(|b| **b != b'}').copied().collect();
        let inside = String::from_utf8(near).unwrap_or_default();
        // Other text in braces, as a schema, repeats nothing.
        if inside.contains(|c: char| !c.is_ascii_digit() && !c.is_whitespace() && c != ',') {
            continue;
        }
        let numbers = inside.split(',').map(|n| n.trim().parse::<usize>());
        if let Some(found) = numbers.filter_map(Result::ok).find(|n| *n > MAX_REPEAT) {
            return Err(GrammarError::TooLarge { what: "repetitions", found, limit: MAX_REPEAT });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_counted_and_schemas_are_not() {
        let check = |source: &str| check(source).map_err(|e| e.to_string());
        assert_eq!(check("start: \"a\"{3,10000}"), Ok(()));
        for times in ["{10001}", "{1,10001}", "{ 3, 10001 }", "{10001,}", "{,10001}"] {
            assert!(
                check(&format!("start: \"a\"{times}")).unwrap_err().contains("repetitions 10001"),
                "{times}"
            );
        }
        assert_eq!(check("start: %json {\"enum\":[1,20000,3]}"), Ok(()));
        assert!(check(&"(".repeat(401)).is_err());
    }
}
