//! Finds arrows: which module names something of which other one, and where.

use proc_macro2::{Span, TokenStream};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Macro, Meta, Visibility};

use crate::modules::{Id, Target, Tree, imports};

/// Module `from` names something that module `to` defines.
pub struct Arrow {
    pub from: Id,
    pub to: Id,
    pub text: String,
}

pub fn arrows(tree: &Tree) -> Vec<Arrow> {
    let mut visitor = Visitor { tree, from: 0, arrows: Vec::new() };
    for (from, module) in tree.modules.iter().enumerate() {
        visitor.from = from;
        module.items.iter().for_each(|item: &Item| visitor.visit_item(item));
    }
    visitor.arrows
}

struct Visitor<'t> {
    tree: &'t Tree,
    from: Id,
    arrows: Vec<Arrow>,
}

impl Visitor<'_> {
    fn names(&mut self, path: &[String], at: Span) {
        let Some(Target::ItemOf(to)) = self.tree.resolve(self.from, path) else { return };
        if to == self.from {
            return;
        }
        let (from, defines) = (&self.tree.modules[self.from], &self.tree.modules[to]);
        let (file, line) = (from.file.display(), at.start().line);
        let what = path.join("::");
        let text = format!("{} -> {}: {what} ({file}:{line})", from.name, defines.name);
        self.arrows.push(Arrow { from: self.from, to, text });
    }

    /// Paths in tokens that syn does not parse. A single name was imported: an arrow already.
    fn tokens(&mut self, tokens: &TokenStream, at: Span) {
        let text = tokens.to_string().replace(" :: ", "::");
        for path in text.split(|c: char| !(c.is_alphanumeric() || "_:".contains(c))) {
            let path: Vec<String> = path.split("::").map(str::to_owned).collect();
            if path.len() > 1 {
                self.names(&path, at);
            }
        }
    }
}

impl<'a> Visit<'a> for Visitor<'_> {
    /// It is a module of the tree itself.
    fn visit_item_mod(&mut self, _: &'a ItemMod) {}

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        let is_private = matches!(item.vis, Visibility::Inherited);
        for import in imports(item) {
            let target = self.tree.resolve(self.from, &import.path);
            let is_of_child =
                matches!(target, Some(Target::ItemOf(id)) if self.tree.is_below(id, self.from));
            if is_private || !is_of_child {
                self.names(&import.path, item.use_token.span);
            }
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.leading_colon.is_none() {
            let names: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
            self.names(&names, path.segments[0].ident.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, found: &'a Macro) {
        visit::visit_macro(self, found);
        self.tokens(&found.tokens, found.bang_token.span);
    }

    fn visit_attribute(&mut self, attribute: &'a Attribute) {
        visit::visit_attribute(self, attribute);
        if let Meta::List(list) = &attribute.meta {
            self.tokens(&list.tokens, attribute.pound_token.span);
        }
    }
}
