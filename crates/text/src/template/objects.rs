//! Python values that the template engine has not: a `None` that does not iterate, and generators.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Rest, ValueKind};
use minijinja::{Environment, Error, State, Value};

/// What stands for tools that were not given. The engine's own none counts as an empty list in a loop; Python's
/// is an error there, and templates that cannot do without tools must fail rather than show an empty list.
#[derive(Debug)]
pub(super) struct Absent;

impl Object for Absent {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        false
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("None")
    }
}

/// Whether the value is `None`.
pub(super) fn is_none(value: &Value) -> bool {
    value.is_none() || value.downcast_object_ref::<Absent>().is_some()
}

/// A value for tools that were not given. Comparison cannot be taught to an object, so a template that compares
/// `tools` by an operator gets the engine's own none.
pub(super) fn absent(source: &str) -> Value {
    let compared = source.match_indices("tools").any(|(at, name)| {
        let after = source[at + name.len()..].trim_start();
        after.starts_with("==") || after.starts_with("!=")
    });
    if compared { Value::from(()) } else { Value::from_object(Absent) }
}

/// What filters such as `map` give: it iterates, has no length, and is always true.
#[derive(Debug)]
struct Generator(Vec<Value>);

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator>")
    }
}

/// Whether the value is a generator: Python prints it by its name and refuses it in JSON.
pub(super) fn is_generator(value: &Value) -> bool {
    value.downcast_object_ref::<Generator>().is_some()
}

/// Makes the filters that are generators in Python give generators.
pub(super) fn add_generators(environment: &mut Environment<'static>) {
    use minijinja::filters::{map, reject, rejectattr, select, selectattr};
    let filters = [
        ("map", Value::from_function(map)),
        ("select", Value::from_function(select)),
        ("reject", Value::from_function(reject)),
        ("selectattr", Value::from_function(selectattr)),
        ("rejectattr", Value::from_function(rejectattr)),
    ];
    for (name, filter) in filters {
        environment.add_filter(name, move |state: &mut State, args: Rest<Value>| -> Result<Value, Error> {
            // What is false, none above all, has no items to Python's filters.
            if args.first().is_some_and(|value| !value.is_true()) {
                return Ok(Value::from_object(Generator(Vec::new())));
            }
            let items = filter.call(state, &args)?;
            Ok(Value::from_object(Generator(items.try_iter()?.collect())))
        });
    }
}

/// Tests whose answer differs from the engine's.
pub(super) fn add_tests(environment: &mut Environment<'static>) {
    environment.add_test("none", is_none);
    environment.add_test("iterable", |value: &Value| {
        matches!(value.kind(), ValueKind::String | ValueKind::Seq | ValueKind::Map | ValueKind::Iterable)
            || value.is_undefined()
    });
}
