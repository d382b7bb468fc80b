//! JSON schemas before they are compiled: what cannot be enforced is found, what changes nothing is left out.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use super::GrammarError;

/// Schemas in schemas.
const MAX_DEPTH: usize = 64;
/// Schemas in all, and properties of one object.
const MAX_SCHEMAS: usize = 20_000;
const MAX_PROPERTIES: usize = 2_000;
/// Lengths and counts: each is a state.
const MAX_COUNT: u64 = 100_000;
/// Schemas compiled by themselves to find the one that fails.
const MAX_TRIES: usize = 64;
const MAX_SEARCH: Duration = Duration::from_secs(5);

/// Keywords that hold one schema.
const ONE: [&str; 3] = ["items", "additionalItems", "additionalProperties"];
/// Keywords that hold a list of schemas.
const LIST: [&str; 5] = ["allOf", "anyOf", "oneOf", "prefixItems", "items"];
/// Keywords that hold schemas by name.
const NAMED: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords that constrain and that nothing here enforces.
const REFUSED: [&str; 19] = [
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$dynamicAnchor",
    "$recursiveRef",
    "$recursiveAnchor",
    "contentSchema",
];
/// Formats that describe a number's or text's encoding to other programs and limit nothing.
const NOTES: [&str; 9] =
    ["int32", "int64", "uint32", "uint64", "float", "double", "password", "byte", "binary"];

/// Checks a schema and leaves out what constrains nothing.
///
/// # Errors
/// A keyword that cannot be enforced, with its path; a schema that is too large or too deep.
pub(super) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    let mut walk = Walk { n_schemas: 0, path: Vec::new(), bounds: Bounds::default() };
    let schema = walk.schema(schema)?;
    // The library takes options from an object.
    Ok(if schema == Value::Bool(true) { json!({}) } else { schema })
}

/// The schema with the library's options: no white space.
pub(super) fn with_options(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(map) = schema.as_object_mut() {
        let options = json!({"whitespace_flexible": false, "item_separator": ",", "key_separator": ":"});
        map.insert("x-guidance".into(), options);
    }
    schema
}

struct Walk {
    n_schemas: usize,
    path: Vec<String>,
    /// What the schemas around say of the value at hand.
    bounds: Bounds,
}

/// A JSON pointer.
fn pointer(path: &[String]) -> String {
    let parts = path.iter().map(|p| format!("/{}", p.replace('~', "~0").replace('/', "~1")));
    std::iter::once("#".to_owned()).chain(parts).collect()
}

impl Walk {
    fn refuse<T>(&self, keyword: &str, reason: impl Into<String>) -> Result<T, GrammarError> {
        Err(GrammarError::Schema {
            path: pointer(&self.path),
            keyword: keyword.into(),
            reason: reason.into(),
        })
    }

    fn schema(&mut self, schema: &Value) -> Result<Value, GrammarError> {
        self.n_schemas += 1;
        if self.n_schemas > MAX_SCHEMAS {
            return Err(GrammarError::TooLarge {
                what: "schemas",
                found: self.n_schemas,
                limit: MAX_SCHEMAS,
            });
        }
        if self.path.len() > 2 * MAX_DEPTH {
            return Err(GrammarError::TooLarge {
                what: "levels",
                found: self.path.len(),
                limit: 2 * MAX_DEPTH,
            });
        }
        let map = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(map) => map,
            _ => return self.refuse("schema", "found neither an object nor true or false"),
        };
        let mut out = Map::new();
        let around = self.bounds;
        for (key, value) in map {
            // These are about the same value, which is within all that is said beside them.
            let same = ["allOf", "anyOf", "oneOf", "if", "then", "else"].contains(&key.as_str());
            self.bounds = if same { around.and(Bounds::of(map)) } else { Bounds::default() };
            if self.idle(key, value, map) {
                continue;
            }
            if REFUSED.contains(&key.as_str()) {
                return self.refuse(key, "it is not supported");
            }
            out.insert(key.clone(), self.keyword(key, value)?);
        }
        self.bounds = around;
        limit(&mut out, self.bounds.and(Bounds::of(map)));
        Ok(Value::Object(out))
    }

    /// Whether a keyword constrains nothing here.
    fn idle(&self, key: &str, value: &Value, map: &Map<String, Value>) -> bool {
        match key {
            // The library reads its options from here; they are the server's, not the client's.
            "x-guidance" => true,
            "uniqueItems" => {
                value == false || map.get("maxItems").and_then(Value::as_u64).is_some_and(|n| n <= 1)
            }
            "unevaluatedItems" | "unevaluatedProperties" | "propertyNames" => {
                value == true || *value == json!({})
            }
            "minContains" | "maxContains" => !map.contains_key("contains"),
            "then" | "else" => !map.contains_key("if"),
            "if" => !map.contains_key("then") && !map.contains_key("else"),
            "dependentRequired" | "dependentSchemas" | "dependencies" => {
                value.as_object().is_some_and(Map::is_empty)
            }
            "contentSchema" | "$dynamicAnchor" | "$recursiveAnchor" => true,
            "format" => value.as_str().is_some_and(|f| NOTES.contains(&f)),
            _ => false,
        }
    }

    fn keyword(&mut self, key: &str, value: &Value) -> Result<Value, GrammarError> {
        match (key, value) {
            (_, Value::Array(list)) if LIST.contains(&key) => {
                let part = |(i, v): (usize, &Value)| self.below(&[key, &i.to_string()], v);
                list.iter().enumerate().map(part).collect::<Result<_, _>>().map(Value::Array)
            }
            (_, Value::Object(map)) if NAMED.contains(&key) => {
                if map.len() > MAX_PROPERTIES {
                    let found = map.len();
                    return Err(GrammarError::TooLarge { what: "properties", found, limit: MAX_PROPERTIES });
                }
                let part = |(name, v): (&String, &Value)| Ok((name.clone(), self.below(&[key, name], v)?));
                map.iter().map(part).collect::<Result<_, _>>().map(Value::Object)
            }
            _ if ONE.contains(&key) => self.below(&[key], value),
            ("$ref", Value::String(to)) if !to.starts_with('#') => {
                self.refuse(key, "it points outside of the schema")
            }
            ("minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties", n) => {
                // Whole numbers may be written with a point.
                let whole = n.as_f64().filter(|f| f.fract() == 0.0 && *f >= 0.0).map(|f| f as u64);
                match whole {
                    Some(n) if n <= MAX_COUNT => Ok(json!(n)),
                    Some(n) => self.refuse(key, format!("{n} is above {MAX_COUNT}")),
                    None => self.refuse(key, "found no whole number"),
                }
            }
            _ => Ok(value.clone()),
        }
    }

    fn below(&mut self, path: &[&str], schema: &Value) -> Result<Value, GrammarError> {
        let n = self.path.len();
        self.path.extend(path.iter().map(|p| (*p).to_owned()));
        let schema = self.schema(schema)?;
        self.path.truncate(n);
        Ok(schema)
    }
}

/// What schemas say of one number's size.
#[derive(Clone, Copy, Default)]
struct Bounds {
    lowest: Option<f64>,
    highest: Option<f64>,
}

impl Bounds {
    /// Of a schema, and of all those that hold with it.
    fn of(schema: &Map<String, Value>) -> Bounds {
        let own = |keys: [&str; 2]| keys.map(|key| schema.get(key).and_then(Value::as_f64));
        let own = Bounds {
            lowest: own(["minimum", "exclusiveMinimum"]).into_iter().flatten().reduce(f64::max),
            highest: own(["maximum", "exclusiveMaximum"]).into_iter().flatten().reduce(f64::min),
        };
        let with = schema.get("allOf").and_then(Value::as_array).into_iter().flatten();
        with.filter_map(Value::as_object).fold(own, |all, part| all.and(Bounds::of(part)))
    }

    /// Within both.
    fn and(self, other: Bounds) -> Bounds {
        Bounds {
            lowest: self.lowest.into_iter().chain(other.lowest).reduce(f64::max),
            highest: self.highest.into_iter().chain(other.highest).reduce(f64::min),
        }
    }
}

/// Adds bounds without which a text could go on for ever, or be one that no reader takes though the schema's words allow
/// it: those of numbers, names and addresses of the mail system, days that every year has, minutes of sixty seconds.
fn limit(schema: &mut Map<String, Value>, bounds: Bounds) {
    limit_number(schema, bounds);
    const DAY: &str = "^[1-9][0-9]{3}-(0[13-9]|1[0-2]|02-([01][0-9]|2[0-8]))";
    let (most, pattern) = match schema.get("format").and_then(Value::as_str) {
        Some("hostname") => (Some(253), None),
        Some("email") => (Some(64), None),
        Some("date") => (None, Some(DAY.to_owned())),
        Some("time") => (None, Some("^[0-9]{2}:[0-9]{2}:[0-5]".to_owned())),
        Some("date-time") => (None, Some(format!("{DAY}.*T[0-9]{{2}}:[0-9]{{2}}:[0-5]"))),
        _ => return,
    };
    for (key, value) in [("maxLength", most.map(|n: u32| json!(n))), ("pattern", pattern.map(Value::String))]
    {
        if let (Some(value), false) = (value, schema.contains_key(key)) {
            schema.insert(key.into(), value);
        }
    }
}

/// Bounds a number on the sides on which the schema does not: whole numbers that every reader keeps exactly (RFC 8259,
/// section 6), other numbers up to 10^15 and without an exponent. Listed values need no bound, and where a bound of the
/// schema's own, or one that is said of the same value beside it, leaves nothing within these, the other side stays open.
fn limit_number(schema: &mut Map<String, Value>, Bounds { lowest, highest }: Bounds) {
    const EXACT: f64 = ((1u64 << 53) - 1) as f64;
    let bound = match schema.get("type").and_then(Value::as_str) {
        Some("integer") => EXACT,
        Some("number") => 1e15,
        _ => return,
    };
    if schema.contains_key("const") || schema.contains_key("enum") {
        return;
    }
    if lowest.is_none() && highest.is_none_or(|n| n > -bound) {
        schema.insert("minimum".into(), json!(-bound));
    }
    if highest.is_none() && lowest.is_none_or(|n| n < bound) {
        schema.insert("maximum".into(), json!(bound));
    }
}

/// Where a schema fails to compile: the innermost schema that fails by itself, and the keyword without which it does
/// not. `fails` compiles a schema and gives the reason.
pub(super) fn locate(root: &Value, reason: &str, fails: &dyn Fn(&Value) -> Option<String>) -> GrammarError {
    let (mut tries, started) = (MAX_TRIES, Instant::now());
    // Where too much has been tried, nothing more is found.
    let mut attempt = |schema: &Value| {
        tries = tries.checked_sub(1).filter(|_| started.elapsed() < MAX_SEARCH)?;
        Some(fails(&with_definitions(schema, root)))
    };
    let (mut path, mut at, mut reason) = (Vec::new(), root, reason.to_owned());
    'inwards: loop {
        for (steps, part) in parts(at).into_iter().filter(|(_, part)| !part.is_boolean()) {
            if let Some(Some(inner)) = attempt(part) {
                path.extend(steps);
                (at, reason) = (part, inner);
                continue 'inwards;
            }
        }
        break;
    }
    let mut keyword = "schema".to_owned();
    for (key, _) in at.as_object().into_iter().flatten() {
        if ["type", "$defs", "definitions", "title", "description"].contains(&key.as_str()) {
            continue;
        }
        let mut without = at.clone();
        without.as_object_mut().expect("it has keys").shift_remove(key);
        if attempt(&without) == Some(None) {
            keyword = key.clone();
            break;
        }
    }
    GrammarError::Schema { path: pointer(&path), keyword, reason }
}

/// A part by itself finds what the whole defines.
pub(super) fn with_definitions(part: &Value, root: &Value) -> Value {
    let mut part = part.clone();
    if let (Some(map), Some(root)) = (part.as_object_mut(), root.as_object()) {
        for key in ["$defs", "definitions", "$schema"] {
            if let (Some(value), false) = (root.get(key), map.contains_key(key)) {
                map.insert(key.into(), value.clone());
            }
        }
    }
    part
}

/// The schemas right within one, and how to get there.
fn parts(schema: &Value) -> Vec<(Vec<String>, &Value)> {
    let mut found = Vec::new();
    for (key, value) in schema.as_object().into_iter().flatten() {
        match value {
            Value::Array(list) if LIST.contains(&key.as_str()) => {
                found.extend(list.iter().enumerate().map(|(i, v)| (vec![key.clone(), i.to_string()], v)));
            }
            Value::Object(map) if NAMED.contains(&key.as_str()) => {
                found.extend(map.iter().map(|(name, v)| (vec![key.clone(), name.clone()], v)));
            }
            value if ONE.contains(&key.as_str()) => found.push((vec![key.clone()], value)),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(schema: Value, added: Value) {
        let mut expected = schema.clone();
        let map = expected.as_object_mut().unwrap();
        map.extend(added.as_object().unwrap().clone());
        assert_eq!(prepare(&schema).unwrap(), expected);
    }

    #[test]
    fn numbers_are_bounded_where_the_schema_leaves_them_open() {
        const EXACT: f64 = 9_007_199_254_740_991.0;
        check(json!({"type": "number"}), json!({"minimum": -1e15, "maximum": 1e15}));
        check(json!({"type": "integer"}), json!({"minimum": -EXACT, "maximum": EXACT}));
        check(json!({"type": "number", "minimum": 5}), json!({"maximum": 1e15}));
        check(json!({"type": "number", "exclusiveMaximum": 1e16}), json!({"minimum": -1e15}));
        // Nothing would be left between the schema's bound and the added one.
        check(json!({"type": "number", "minimum": 1e16}), json!({}));
        check(json!({"type": "number", "exclusiveMinimum": 1e15}), json!({}));
        check(json!({"type": "integer", "maximum": -1e16}), json!({}));
        // Both bounds are the schema's own.
        check(json!({"type": "number", "minimum": -1e18, "maximum": 1e18}), json!({}));
        check(json!({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 9}), json!({}));
        // Values by name.
        check(json!({"type": "number", "enum": [1e16, 1]}), json!({}));
        check(json!({"type": "integer", "const": 9_007_199_254_740_994u64}), json!({}));
        check(json!({"type": "string"}), json!({}));
    }

    #[test]
    fn bounds_beside_a_type_count_as_its_own() {
        let part = |schema: Value, at: &str| prepare(&schema).unwrap().pointer(at).unwrap().clone();
        let number = json!({"type": "number"});
        for beside in [
            json!({"allOf": [number, {"minimum": 1e16}]}),
            json!({"minimum": 1e16, "allOf": [number]}),
            json!({"allOf": [{"anyOf": [number]}, {"allOf": [{"exclusiveMinimum": 1e16}]}]}),
        ] {
            let at = if beside["allOf"][0].get("anyOf").is_some() { "/allOf/0/anyOf/0" } else { "/allOf/0" };
            assert_eq!(part(beside.clone(), at), number, "{beside}");
        }
        let open = json!({"type": "number", "minimum": -1e15, "maximum": 1e15});
        // Alternatives and parts say nothing of one another.
        assert_eq!(part(json!({"anyOf": [number, {"minimum": 1e16}]}), "/anyOf/0"), open);
        assert_eq!(part(json!({"minimum": 1e16, "items": number}), "/items"), open);
        assert_eq!(
            part(json!({"allOf": [number, {"minimum": 3}]}), "/allOf/0"),
            json!({"type": "number", "maximum": 1e15})
        );
    }
}
