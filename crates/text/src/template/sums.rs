//! Makes templates pay for sums of lists.
//!
//! The template engine joins lists by `+` without counting, so that a few dozen doublings fill any memory. No hook
//! reaches the operator; so every sum in the source is put into a call of a function that counts its items. The
//! engine's own parser says where sums start and end.
//!
//! On the way, sums get what Python's markup does: a string that went through the filter `safe` escapes for HTML what is
//! added to it, on either side.

use minijinja::machinery::{Span, ast, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

/// The function around a sum.
pub(super) const NAME: &str = "__counted";
/// The filter behind what is added to a safe string.
pub(super) const ESCAPE: &str = "__escaped";
/// Sums of one chain that are counted together: the parser takes only so many calls inside of calls.
const GROUP: usize = 8;
/// Steps for each item of a list that is a sum. Uncounted sums of a group hold a few times as many.
const ITEM_STEPS: u64 = 4;

/// Counts the items of a list; any other value just passes.
pub(super) fn count(state: &State, value: Value) -> Result<Value, Error> {
    if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        let Some(len) = value.len() else {
            return Err(Error::new(ErrorKind::InvalidOperation, "what is added to a list has no length"));
        };
        state.consume_fuel((len as u64).saturating_mul(ITEM_STEPS))?;
    }
    Ok(value)
}

/// Escapes a string for HTML as Python's `markupsafe` does; any other value just passes.
pub(super) fn escape(state: &State, value: Value) -> Result<Value, Error> {
    let Some(text) = value.as_str().filter(|_| !value.is_safe()) else { return Ok(value) };
    state.consume_fuel(text.len() as u64 / 16)?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(Value::from_safe_string(out))
}

/// Puts every sum of a template into a call of [`NAME`].
///
/// # Errors
/// Those of the parser.
pub(super) fn counted(source: &str, syntax: &SyntaxConfig) -> Result<String, Error> {
    let template = parse(source, "chat_template", syntax.clone())?;
    let mut sums = Sums::default();
    sums.statement(&template);
    Ok(sums.wrap(source))
}

/// Where sums start and end, in bytes of the source.
#[derive(Default)]
struct Sums {
    /// Position, and what is there, in the order in which it is to stand at one position.
    marks: Vec<(usize, Mark)>,
}

/// A filter, or an end of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mark {
    Escapes,
    Closes,
    Counts,
}

impl Sums {
    fn wrap(mut self, source: &str) -> String {
        self.marks.sort_unstable();
        let mut out = String::with_capacity(source.len() + self.marks.len() * NAME.len());
        let mut at = 0;
        for (position, mark) in self.marks {
            // The parser's positions lie between tokens; anything else would leave the source as it is.
            out.push_str(source.get(at..position).unwrap_or_default());
            at = position;
            match mark {
                Mark::Counts => out.extend([NAME, "("]),
                Mark::Escapes => out.extend(["|", ESCAPE]),
                Mark::Closes => out.push(')'),
            }
        }
        out.push_str(source.get(at..).unwrap_or_default());
        out
    }

    fn mark(&mut self, span: Span) {
        self.marks.push((span.start_offset as usize, Mark::Counts));
        self.marks.push((span.end_offset as usize, Mark::Closes));
    }

    /// Marks what a chain of sums adds to strings that went through `safe`.
    fn markup(&mut self, chain: &ast::Expr) {
        let operands = operands(chain);
        let safe = |e: &ast::Expr| matches!(e, ast::Expr::Filter(f) if f.name == "safe");
        if operands.iter().any(|e| safe(e)) {
            operands.into_iter().filter(|e| !safe(e)).for_each(|e| self.escape(e));
        }
    }

    /// Marks an operand; of a choice both sides. What is no string passes the filter unchanged.
    fn escape(&mut self, operand: &ast::Expr) {
        match operand {
            ast::Expr::IfExpr(e) => {
                self.escape(&e.true_expr);
                e.false_expr.iter().for_each(|e| self.escape(e));
            }
            ast::Expr::BinOp(op) if matches!(op.op, ast::BinOpKind::Add) => {
                operands(operand).into_iter().for_each(|e| self.escape(e));
            }
            e => self.marks.push((e.span().end_offset as usize, Mark::Escapes)),
        }
    }

    fn statements(&mut self, list: &[ast::Stmt]) {
        list.iter().for_each(|statement| self.statement(statement));
    }

    fn statement(&mut self, statement: &ast::Stmt) {
        use ast::Stmt;
        match statement {
            Stmt::Template(s) => self.statements(&s.children),
            Stmt::EmitExpr(s) => self.expr(&s.expr),
            Stmt::ForLoop(s) => {
                self.expr(&s.iter);
                self.exprs(&s.filter_expr);
                self.statements(&s.body);
                self.statements(&s.else_body);
            }
            Stmt::IfCond(s) => {
                self.expr(&s.expr);
                self.statements(&s.true_body);
                self.statements(&s.false_body);
            }
            Stmt::WithBlock(s) => {
                s.assignments.iter().for_each(|(_, value)| self.expr(value));
                self.statements(&s.body);
            }
            Stmt::Set(s) => self.expr(&s.expr),
            Stmt::SetBlock(s) => {
                self.exprs(&s.filter);
                self.statements(&s.body);
            }
            Stmt::AutoEscape(s) => self.statements(&s.body),
            Stmt::FilterBlock(s) => {
                self.expr(&s.filter);
                self.statements(&s.body);
            }
            Stmt::Block(s) => self.statements(&s.body),
            Stmt::Macro(s) => self.macro_body(s),
            Stmt::CallBlock(s) => {
                self.call(&s.call);
                self.macro_body(&s.macro_decl);
            }
            Stmt::Do(s) => self.call(&s.call),
            // These load other templates, and there are none.
            Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {}
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
        }
    }

    fn macro_body(&mut self, s: &ast::Macro) {
        self.exprs(&s.defaults);
        self.statements(&s.body);
    }

    fn call(&mut self, call: &ast::Call) {
        self.expr(&call.expr);
        self.args(&call.args);
    }

    fn args(&mut self, args: &[ast::CallArg]) {
        use ast::CallArg;
        for arg in args {
            let (CallArg::Pos(e) | CallArg::Kwarg(_, e) | CallArg::PosSplat(e) | CallArg::KwargSplat(e)) =
                arg;
            self.expr(e);
        }
    }

    fn exprs<'a>(&mut self, list: impl IntoIterator<Item = &'a ast::Expr<'a>>) {
        list.into_iter().for_each(|expr| self.expr(expr));
    }

    fn expr(&mut self, expr: &ast::Expr) {
        self.markup(expr);
        if let (1.., ast::Expr::BinOp(sum)) = (self.uncounted(expr), expr) {
            self.mark(sum.span());
        }
    }

    /// Marks the sums inside of an expression and says how many at its left edge are left to the caller.
    fn uncounted(&mut self, expr: &ast::Expr) -> usize {
        let ast::Expr::BinOp(op) = expr else {
            self.inner(expr);
            return 0;
        };
        use ast::BinOpKind::{Add, Concat, Div, FloorDiv, Mul, Pow, Rem, Sub};
        if !matches!(op.op, Add | Concat | Div | FloorDiv | Mul | Pow | Rem | Sub) {
            // The parser starts comparisons one token early, and they give no list.
            self.expr(&op.left);
            self.expr(&op.right);
            return 0;
        }
        let left = self.uncounted(&op.left);
        self.expr(&op.right);
        let is_sum = matches!(op.op, Add);
        match left + usize::from(is_sum) {
            GROUP.. => {
                self.mark(op.span());
                0
            }
            n => n,
        }
    }

    fn inner(&mut self, expr: &ast::Expr) {
        use ast::Expr;
        match expr {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::BinOp(_) => self.expr(expr),
            Expr::Slice(e) => {
                self.expr(&e.expr);
                self.exprs(e.start.iter().chain(&e.stop).chain(&e.step));
            }
            Expr::UnaryOp(e) => self.expr(&e.expr),
            Expr::Compare(e) => {
                self.expr(&e.expr);
                e.ops.iter().for_each(|op| self.expr(&op.expr));
            }
            Expr::IfExpr(e) => {
                self.expr(&e.test_expr);
                self.expr(&e.true_expr);
                self.exprs(&e.false_expr);
            }
            Expr::Filter(e) => {
                self.exprs(&e.expr);
                self.args(&e.args);
            }
            Expr::Test(e) => {
                self.expr(&e.expr);
                self.args(&e.args);
            }
            Expr::GetAttr(e) => self.expr(&e.expr),
            Expr::GetItem(e) => {
                self.expr(&e.expr);
                self.expr(&e.subscript_expr);
            }
            Expr::Call(e) => self.call(e),
            Expr::List(e) => self.exprs(&e.items),
            Expr::Tuple(e) => self.exprs(&e.items),
            Expr::Map(e) => self.exprs(e.keys.iter().chain(&e.values)),
        }
    }
}

/// What a chain of sums adds up, last first; an expression that is no sum alone.
fn operands<'e, 's>(chain: &'e ast::Expr<'s>) -> Vec<&'e ast::Expr<'s>> {
    let mut all = Vec::new();
    let mut rest = chain;
    while let ast::Expr::BinOp(op) = rest
        && matches!(op.op, ast::BinOpKind::Add)
    {
        all.push(&op.right);
        rest = &op.left;
    }
    all.push(rest);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: &str) {
        let found = counted(source, &SyntaxConfig::default()).unwrap();
        assert_eq!(found.replace(NAME, "f"), expected);
    }

    #[test]
    fn sums_are_put_into_calls() {
        check("é{{- a + b -}} x", "é{{- f(a + b) -}} x");
        check("{% set x = (a + b) * c %}", "{% set x = f((a + b) * c) %}");
        check("{% set x = a + b - c ~ 'y' %}", "{% set x = f(a + b - c ~ 'y') %}");
        check("{{ g(a+b, x=[c+d])|h(e + i[j+k]) }}", "{{ g(f(a+b), x=[f(c+d)])|h(f(e + i[f(j+k)])) }}");
        check("{% for x in a + b if c + d %}{{ x }}{% endfor %}", {
            "{% for x in f(a + b) if f(c + d) %}{{ x }}{% endfor %}"
        });
        check("{% if a+b == c %}+{% elif d %}{{ 'a + b' }}{% endif %}", {
            "{% if f(a+b) == c %}+{% elif d %}{{ 'a + b' }}{% endif %}"
        });
        let found = "{{ f('a'|safe + b[0]|__escaped + c | d()|__escaped) }}";
        check("{{ 'a'|safe + b[0] + c | d() }}", found);
        check("{{ (a if b else c) + d|safe }}", "{{ f((a|__escaped if b else c|__escaped) + d|safe) }}");
        check("{{ a+b+c+d+e+g+h+i+j+k }}", "{{ f(f(a+b+c+d+e+g+h+i+j)+k) }}");
    }
}
