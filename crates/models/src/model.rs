//! What a model says of itself.

use firth_graph::{Graph, Node, PageGroup};

use crate::{BuildOptions, ModelInfo};

/// A model of a file: what it needs and the graph it becomes.
pub trait Model: Send + Sync {
    /// Sizes and page groups.
    fn info(&self) -> ModelInfo;

    /// The hidden rows `[width, T]` of the step, before row selection, the final norm and the head.
    fn forward(&self, g: &mut Graph, step: &StepNodes) -> Node;

    /// The final norm of hidden rows `[width, rows]`.
    fn normalise(&self, g: &mut Graph, hidden: Node) -> Node;

    /// Logits `[vocab, O]` from normalised rows `[width, O]`; asked of models that have them.
    fn logits(&self, g: &mut Graph, rows: Node) -> Node;

    /// The head that drafts further tokens, if the file has one.
    fn draft_head(&self) -> Option<&dyn DraftHead> {
        None
    }
}

/// A head that predicts the token after the next: it sees a token and the hidden row before it.
pub trait DraftHead: Send + Sync {
    /// The hidden rows `[n, T]` that the head sees, from the last layer's rows and their final norm.
    fn hidden(&self, _rows: Node, normalised: Node) -> Node {
        normalised
    }

    /// In the main program: writes what later rows of the head read, for every row of the step from its token
    /// and the hidden row before it. `hidden` holds the step's own rows.
    fn catch_up(&self, g: &mut Graph, hidden: Node, step: &StepNodes);

    /// In the draft program: the hidden rows `[n, T]` after the head, from tokens and the hidden rows before them.
    fn forward(&self, g: &mut Graph, hidden: Node, step: &StepNodes) -> Node;

    /// Logits `[vocab, O]` from rows that [`DraftHead::forward`] gave.
    fn logits(&self, g: &mut Graph, rows: Node) -> Node;
}

/// The inputs of a step as nodes.
pub struct StepNodes {
    /// `[T]` ids, or -1 where the row comes ready.
    pub tokens: Node,
    /// `[width, T]` ready rows.
    pub embeds: Node,
    /// `[T]` index of each row in its sequence.
    pub positions: Node,
    /// `[4, S]`, see `firth_graph::seq_table`.
    pub seqs: Node,
    /// `[4, S]`, see `firth_graph::slot_table`; where the model keeps states in slots.
    pub slots: Option<Node>,
    /// `[pages, S]` per group that the program reads, the drafting head's last.
    pub pages: Vec<Option<Node>>,
    /// The options of the build.
    pub options: BuildOptions,
}

impl StepNodes {
    /// The slot table.
    ///
    /// # Panics
    /// Where the model's info denies states in slots.
    pub fn slots(&self) -> Node {
        self.slots.expect("a model with states in slots says so")
    }

    /// The pages of a group.
    ///
    /// # Panics
    /// Where the model's info does not list the group.
    pub fn pages_of(&self, group: PageGroup) -> Node {
        self.pages[group.0 as usize].expect("a program has the tables of the groups that it reads")
    }
}
