//! Rows that are sorted by a column, filtered by a text, and of which one is selected.

use super::column::Column;

pub trait Row: 'static {
    /// Identifies the row in each refresh.
    type Id: Copy + Ord;

    fn id(&self) -> Self::Id;

    /// Does it show this text? `text` is in lower case.
    fn contains(&self, text: &str) -> bool;
}

pub struct List<R: Row> {
    pub columns: &'static [Column<R>],
    rows: Vec<R>,
    /// Indices of the rows that pass the filter, in the order of the sort.
    shown: Vec<usize>,
    sorted_by: usize,
    is_reversed: bool,
    filter: String,
    /// Position among those shown. `selected` keeps it at its row while others come and go; `None`
    /// at the first place.
    cursor: usize,
    selected: Option<R::Id>,
    /// First position on the screen.
    top: usize,
}

/// Actions of keys on a list, whatever its rows are.
pub trait Browse {
    /// Number of rows that pass the filter.
    fn len(&self) -> usize;

    fn filter(&self) -> &str;

    fn set_filter(&mut self, text: String);

    /// Indices of the columns that some row uses.
    fn used_columns(&self) -> Vec<usize>;

    /// Heading and meaning of a column.
    fn describe_column(&self, column: usize) -> (&'static str, &'static str);

    /// Index of the column that sorts.
    fn sorted_by(&self) -> usize;

    /// Sorts by a column: text upwards, numbers downwards.
    fn sort_by(&mut self, column: usize);

    /// Sorts the other way round.
    fn reverse(&mut self);

    /// Position of the selected row.
    fn cursor(&self) -> usize;

    /// Selects the row at a position, or the last one.
    fn move_to(&mut self, position: usize);

    /// Selects another row; negative: upwards.
    fn move_by(&mut self, rows: isize) {
        self.move_to(self.cursor().saturating_add_signed(rows));
    }
}

impl<R: Row> List<R> {
    /// Without rows, sorted by the column with this heading.
    pub fn new(columns: &'static [Column<R>], sorted_by: &str) -> Self {
        let sorted_by = columns.iter().position(|column| column.heading == sorted_by);
        Self {
            columns,
            rows: Vec::new(),
            shown: Vec::new(),
            sorted_by: sorted_by.unwrap_or(0),
            is_reversed: false,
            filter: String::new(),
            cursor: 0,
            selected: None,
            top: 0,
        }
    }

    /// Takes the rows of a refresh.
    pub fn replace_rows(&mut self, rows: Vec<R>) {
        self.rows = rows;
        self.arrange_rows();
    }

    /// All rows, whatever the filter, in no order.
    pub fn all(&self) -> &[R] {
        &self.rows
    }

    /// Rows that pass the filter, in order.
    pub fn iter(&self) -> impl Iterator<Item = &R> {
        self.shown.iter().map(|index| &self.rows[*index])
    }

    /// Are the largest values at the top?
    pub fn is_descending(&self) -> bool {
        self.columns[self.sorted_by].is_number != self.is_reversed
    }

    fn arrange_rows(&mut self) {
        let text = self.filter.to_lowercase();
        let rows = &self.rows;
        let passes = |index: &usize| text.is_empty() || rows[*index].contains(&text);
        self.shown = (0..rows.len()).filter(passes).collect();
        let (value, is_descending) = (self.columns[self.sorted_by].value, self.is_descending());
        self.shown.sort_by(|a, b| {
            let (a, b) = (&rows[*a], &rows[*b]);
            let order = value(a).compare(&value(b));
            // Rows with equal values keep their places.
            (if is_descending { order.reverse() } else { order }).then_with(|| a.id().cmp(&b.id()))
        });
        let place = self.selected.and_then(|id| self.iter().position(|row| row.id() == id));
        match place {
            Some(place) => self.cursor = place,
            None => self.move_to(self.cursor),
        }
    }

    pub fn selected_row(&self) -> Option<&R> {
        self.shown.get(self.cursor).map(|index| &self.rows[*index])
    }

    /// The rows that a screen of `height` rows shows, and the position of the first one.
    pub fn visible_rows(&mut self, height: usize) -> (usize, Vec<&R>) {
        let last_top = self.shown.len().saturating_sub(height);
        let least = (self.cursor + 1).saturating_sub(height);
        self.top = self.top.clamp(least, self.cursor.max(least)).min(last_top.max(least));
        (self.top, self.iter().skip(self.top).take(height).collect())
    }
}

impl<R: Row> Browse for List<R> {
    fn len(&self) -> usize {
        self.shown.len()
    }

    fn filter(&self) -> &str {
        &self.filter
    }

    fn set_filter(&mut self, text: String) {
        self.filter = text;
        self.arrange_rows();
    }

    fn used_columns(&self) -> Vec<usize> {
        let is_used = |index: &usize| self.rows.iter().any(self.columns[*index].is_used);
        (0..self.columns.len()).filter(is_used).collect()
    }

    fn describe_column(&self, column: usize) -> (&'static str, &'static str) {
        (self.columns[column].heading, self.columns[column].meaning)
    }

    fn sorted_by(&self) -> usize {
        self.sorted_by
    }

    fn sort_by(&mut self, column: usize) {
        self.sorted_by = column.min(self.columns.len() - 1);
        self.is_reversed = false;
        self.arrange_rows();
    }

    fn reverse(&mut self) {
        self.is_reversed = !self.is_reversed;
        self.arrange_rows();
    }

    fn cursor(&self) -> usize {
        self.cursor
    }

    fn move_to(&mut self, position: usize) {
        self.cursor = position.min(self.shown.len().saturating_sub(1));
        // The first place is kept, whatever row comes to it: a list begins at its top.
        self.selected = self.selected_row().filter(|_| self.cursor > 0).map(Row::id);
    }
}

#[cfg(test)]
mod tests {
    use vsnoop_host::units;

    use super::*;
    use crate::top::column::{Value, column, number};

    struct Item(u32, &'static str);

    impl Row for Item {
        type Id = u32;

        fn id(&self) -> u32 {
            self.0
        }

        fn contains(&self, text: &str) -> bool {
            self.1.to_lowercase().contains(text)
        }
    }

    static COLUMNS: [Column<Item>; 2] = [
        column("name", |item| Value::Text(item.1)),
        number("number", |item| Value::Whole(item.0.into(), units::count)),
    ];

    fn list() -> List<Item> {
        let mut list = List::new(&COLUMNS, "number");
        list.replace_rows(vec![Item(2, "b"), Item(1, "Web"), Item(3, "a")]);
        list
    }

    fn ids(list: &List<Item>) -> Vec<u32> {
        list.iter().map(Row::id).collect()
    }

    #[test]
    fn numbers_sort_downwards_text_upwards_and_both_the_other_way_round() {
        let mut list = list();
        assert_eq!(ids(&list), [3, 2, 1]);
        list.reverse();
        assert_eq!(ids(&list), [1, 2, 3]);
        list.sort_by(0);
        assert_eq!(ids(&list), [1, 3, 2]);
        list.reverse();
        assert_eq!(ids(&list), [2, 3, 1]);
    }

    #[test]
    fn the_selection_stays_at_its_row_and_falls_back_to_a_neighbour() {
        let mut list = list();
        list.move_by(1);
        assert_eq!(list.selected_row().map(Row::id), Some(2));
        list.replace_rows(vec![Item(2, "b"), Item(9, "x"), Item(8, "y")]);
        assert_eq!((list.selected_row().map(Row::id), list.cursor()), (Some(2), 2));
        list.replace_rows(vec![Item(9, "x"), Item(8, "y")]);
        assert_eq!(list.selected_row().map(Row::id), Some(8));
        list.replace_rows(Vec::new());
        assert!(list.selected_row().is_none());
        list.move_by(-1);
        list.replace_rows(vec![Item(7, "z")]);
        assert_eq!(list.selected_row().map(Row::id), Some(7));
    }

    #[test]
    fn a_list_in_which_nothing_was_selected_stays_at_its_top() {
        let mut list = list();
        list.replace_rows(vec![Item(3, "a"), Item(9, "x")]);
        assert_eq!((list.cursor(), list.selected_row().map(Row::id)), (0, Some(9)));
    }

    #[test]
    fn a_filter_keeps_what_contains_it_in_any_case() {
        let mut list = list();
        list.set_filter("wE".into());
        assert_eq!((ids(&list), list.all().len()), (vec![1], 3));
        list.set_filter("nothing".into());
        assert_eq!(list.len(), 0);
        list.set_filter(String::new());
        assert_eq!(list.len(), 3);
    }

    #[test]
    fn the_window_follows_the_selection_and_is_full_when_it_can_be() {
        let mut list = List::new(&COLUMNS, "number");
        list.replace_rows((0..10).map(|number| Item(number, "x")).collect());
        let top = |list: &mut List<Item>, height| {
            let (top, rows) = list.visible_rows(height);
            (top, rows.len())
        };
        assert_eq!(top(&mut list, 4), (0, 4));
        list.move_to(5);
        assert_eq!(top(&mut list, 4), (2, 4));
        list.move_to(99);
        assert_eq!(top(&mut list, 4), (6, 4));
        assert_eq!(top(&mut list, 8), (2, 8));
        list.move_to(0);
        assert_eq!(top(&mut list, 4), (0, 4));
        assert_eq!(top(&mut list, 0).1, 0);
        list.replace_rows(Vec::new());
        assert_eq!(top(&mut list, 4), (0, 0));
    }
}
