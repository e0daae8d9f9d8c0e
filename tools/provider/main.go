package main

import (
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/fwprovider"
	_ "github.com/hashicorp/terraform-provider-google-beta/google-beta/provider"
	_ "github.com/pulumi/pulumi-terraform-bridge/v3/pkg/pf/tfbridge"
	_ "github.com/pulumi/pulumi-terraform-bridge/v3/pkg/tfbridge"
)

func main() {}
